#include "runtime/dynamic_library.hpp"

#include <dlfcn.h>
#include <link.h>

namespace packjit {

DynamicLibrary DynamicLibrary::open(const std::string& path) {
  DynamicLibrary library;
  library.path_ = path;
  library.handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library.handle_ == nullptr) {
    const char* message = dlerror();
    library.error_ = message != nullptr ? message : "dlopen failed without a message";
    return library;
  }
  link_map* map = nullptr;
  if (dlinfo(library.handle_, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name != nullptr &&
      map->l_name[0] != '\0') {
    library.path_ = map->l_name;
  }
  return library;
}

void* DynamicLibrary::symbol(const char* name) const { return handle_ != nullptr ? dlsym(handle_, name) : nullptr; }

}  // namespace packjit
