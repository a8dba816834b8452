// Any bytes at all: the reader either refuses them with its one kind of error, or returns tensors that can be written
// and read again unchanged.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>

#include "cli/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  packjit::SafetensorsFile file;
  try {
    file = packjit::parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz");
  } catch (const std::invalid_argument&) {
    return 0;
  }
  const std::string bytes = packjit::serialize(file.tensors);
  const packjit::SafetensorsFile again = packjit::parse_safetensors(std::as_bytes(std::span(bytes)), "again");
  if (again.tensors.size() != file.tensors.size()) std::abort();
  for (const auto& [name, tensor] : file.tensors) {
    const packjit::HostTensor& other = again.tensors.at(name);
    if (other.type != tensor.type || other.shape != tensor.shape || other.bytes != tensor.bytes) std::abort();
  }
  return 0;
}
