#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "runtime/tensor.hpp"

namespace packjit {

/// What a safetensors file holds: 8 bytes of header length (little endian), a JSON header, tensor bytes without gaps.
/// F32, F16, BF16, F64, I16, U16, I32 and I64 become tensors; of any other dtype only the name is kept, so that a
/// program can name it when it needs that tensor, and a file may hold what nobody asks for.
struct SafetensorsFile {
  HostTensors tensors;
  std::map<std::string, std::string, std::less<>> unsupported;  ///< tensor name -> dtype as the file spells it
};

/// The largest header read, in bytes; the limit of the format's other readers.
inline constexpr std::size_t kMaxSafetensorsHeaderBytes = 100'000'000;

/// Reads a file. Throws std::invalid_argument, naming the file, the tensor, what was expected and what was found, for a
/// file that cannot be read and for any bytes that are not sound: lengths that do not fit, offsets that overlap, leave
/// gaps or do not match dtype and shape, names given twice, text that is not UTF-8,
/// bytes other than spaces behind the header's JSON. EnvironmentError where memory for a tensor is missing.
[[nodiscard]] SafetensorsFile read_safetensors(const std::filesystem::path& path);

/// The same for bytes in memory; `file_name` is for messages.
[[nodiscard]] SafetensorsFile parse_safetensors(std::span<const std::byte> bytes, std::string_view file_name);

/// The bytes of a file with these tensors (cli/output_file.hpp puts them on disk), the same for the same tensors:
/// larger elements first, then by name, so that every tensor is aligned to its element. The header is padded with
/// blanks to 8 bytes. Throws std::invalid_argument for a name that is not UTF-8 or is "__metadata__", and for a tensor
/// whose bytes do not match its shape.
[[nodiscard]] std::string serialize(const HostTensors& tensors);

}  // namespace packjit
