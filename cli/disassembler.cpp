#include "cli/disassembler.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "cli/output_file.hpp"
#include "runtime/errors.hpp"
#include "runtime/host/child_process.hpp"
#include "runtime/host/host_compiler.hpp"
#include "runtime/settings.hpp"

namespace packjit {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> program_folders() {
  std::vector<fs::path> folders;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const auto root = environment(name)) folders.push_back(fs::path(*root) / "bin");
  }
  const std::string path = environment("PATH").value_or("");
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    if (end > begin) folders.emplace_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  folders.emplace_back("/usr/local/cuda/bin");
  return folders;
}

}  // namespace

std::optional<std::string> find_disassembler() {
  // cuobjdump itself calls nvdisasm, so nvdisasm alone is enough.
  for (const char* name : {"nvdisasm", "cuobjdump"}) {
    for (const fs::path& folder : program_folders()) {
      const fs::path program = folder / name;
      std::error_code error;
      if (fs::is_regular_file(program, error) && access(program.c_str(), X_OK) == 0) return program.string();
    }
  }
  return std::nullopt;
}

std::string disassemble(const std::string& program, std::string_view cubin) {
  const host::PrivateDirectory directory;
  const std::string image = directory.path() + "/kernel.cubin";
  write_output_file(image, cubin);
  std::vector<std::string> command = {program};
  if (fs::path(program).filename() == "cuobjdump") command.emplace_back("--dump-sass");
  command.push_back(image);
  try {
    host::ChildResult result = host::run_program(command);
    if (result.status == 0) return std::move(result.output);
    throw EnvironmentError(
        fmt::format("'{}' failed on the image with exit status {}: {}", program, result.status, result.output));
  } catch (const std::system_error& error) {
    throw EnvironmentError(fmt::format("could not run the disassembler '{}': {}", program, error.what()));
  }
}

}  // namespace packjit
