#include "runtime/dynamic_library.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstddef>
#include <cstring>

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

namespace {

struct BuildIdSearch {
  std::string path;
  std::string id;
};

// Notes are (name size, description size, type, name, description), each padded to 4 bytes.
void read_notes(const unsigned char* notes, std::size_t bytes, std::string& id) {
  const auto padded = [](std::size_t size) { return (size + 3) / 4 * 4; };
  while (bytes >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes, sizeof note);
    const std::size_t description = sizeof note + padded(note.n_namesz);
    const std::size_t size = description + padded(note.n_descsz);
    if (size > bytes) return;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof ELF_NOTE_GNU &&
        std::memcmp(notes + sizeof note, ELF_NOTE_GNU, sizeof ELF_NOTE_GNU) == 0) {
      for (std::size_t i = 0; i < note.n_descsz; ++i) id += fmt::format("{:02x}", notes[description + i]);
      return;
    }
    notes += size;
    bytes -= size;
  }
}

int read_build_id(dl_phdr_info* info, std::size_t /*size*/, void* data) {
  auto& search = *static_cast<BuildIdSearch*>(data);
  if (info->dlpi_name == nullptr || search.path != info->dlpi_name) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE || !search.id.empty()) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the system gives addresses as numbers
    read_notes(reinterpret_cast<const unsigned char*>(info->dlpi_addr + segment.p_vaddr), segment.p_memsz, search.id);
  }
  return 1;
}

}  // namespace

std::string DynamicLibrary::build_id() const {
  BuildIdSearch search{path_, {}};
  if (is_open()) dl_iterate_phdr(&read_build_id, &search);
  return search.id;
}

void* DynamicLibrary::symbol(const char* name) const { return handle_ != nullptr ? dlsym(handle_, name) : nullptr; }

}  // namespace packjit
