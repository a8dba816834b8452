#include "cli/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/safetensors_header.hpp"
#include "runtime/errors.hpp"

namespace packjit {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensor bytes are copied between files and memory as they are");

constexpr std::size_t kLengthBytes = 8;

constexpr std::pair<std::string_view, ElementType> kDtypes[] = {
    {"F32", ElementType::fp32},  {"F16", ElementType::fp16},  {"BF16", ElementType::bf16},
    {"F64", ElementType::fp64},  {"I16", ElementType::int16}, {"U16", ElementType::uint16},
    {"I32", ElementType::int32}, {"I64", ElementType::int64}, {"C64", ElementType::complex64}};

std::optional<ElementType> element_type_of(std::string_view dtype) {
  for (const auto& [name, type] : kDtypes) {
    if (name == dtype) return type;
  }
  return std::nullopt;
}

std::string_view dtype_text(ElementType type) {
  for (const auto& [name, known] : kDtypes) {
    if (known == type) return name;
  }
  throw std::logic_error("an element type without a safetensors dtype");
}

/// Where the bytes come from: a file or memory. `read` fills its span from an offset that lies inside `size`.
struct ByteSource {
  std::string_view name;
  std::uint64_t size;
  std::function<void(std::uint64_t, std::span<std::byte>)> read;
};

[[noreturn]] void fail(const ByteSource& source, std::string_view text) {
  throw std::invalid_argument(fmt::format("{}: {}", source.name, text));
}

[[noreturn]] void fail(const ByteSource& source, const SafetensorsEntry& entry, std::string_view text) {
  fail(source, fmt::format("tensor {}: {}", quoted_name(entry.name), text));
}

/// Resizes a container for what is read next. Sizes were held against the file's before, so too large a one is a matter
/// of this machine's memory and not of the file.
template <typename Container>
void make_room(Container& container, std::size_t bytes, const ByteSource& source, const std::string& what) {
  try {
    container.resize(bytes);
  } catch (const std::bad_alloc&) {
    throw EnvironmentError(fmt::format(
        "out of memory: reading {} of {} needs {} bytes (the file has {}); run it where there is more memory, or "
        "raise the limit (ulimit -v)",
        what, source.name, bytes, source.size));
  }
}

std::string read_header(const ByteSource& source) {
  if (source.size < kLengthBytes) {
    fail(source, fmt::format("not a safetensors file: it has {} bytes; expected at least the {} of the header length",
                             source.size, kLengthBytes));
  }
  std::array<std::byte, kLengthBytes> length_bytes;
  source.read(0, length_bytes);
  const auto length = std::bit_cast<std::uint64_t>(length_bytes);
  if (length > kMaxSafetensorsHeaderBytes) {
    fail(source,
         fmt::format("not a safetensors file, or damaged: a header of {} bytes is announced; at most {} are read",
                     length, kMaxSafetensorsHeaderBytes));
  }
  if (length > source.size - kLengthBytes) {
    fail(source, fmt::format("truncated safetensors file: a header of {} bytes is announced; {} bytes follow", length,
                             source.size - kLengthBytes));
  }
  std::string text;
  make_room(text, static_cast<std::size_t>(length), source, "the header");
  source.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  if (text.empty() || text.front() != '{') {
    fail(source, "not a safetensors file: its header does not begin with '{'");
  }
  return text;
}

/// Offsets must cover the data once, without gap or overlap, whatever order the header lists the tensors in.
void check_offsets(const ByteSource& source, const std::vector<SafetensorsEntry>& entries, std::uint64_t data_size) {
  std::vector<const SafetensorsEntry*> by_offset;
  by_offset.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin > entry.end || entry.end > data_size) {
      fail(source, entry,
           fmt::format("data_offsets are [{}, {}]; expected an interval inside the {} bytes of data "
                       "that the file holds",
                       entry.begin, entry.end, data_size));
    }
    by_offset.push_back(&entry);
  }
  std::sort(by_offset.begin(), by_offset.end(), [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
    return std::tie(a->begin, a->end, a->name) < std::tie(b->begin, b->end, b->name);
  });
  std::uint64_t next = 0;
  for (const SafetensorsEntry* entry : by_offset) {
    if (entry->begin != next) {
      fail(source, *entry,
           fmt::format("data_offsets begin at {}, where the tensor before ends at {}; expected no {}", entry->begin,
                       next, entry->begin < next ? "overlap" : "gap"));
    }
    next = entry->end;
  }
  if (next != data_size) {
    fail(source, fmt::format("tensors end at byte {} of the data, which has {}; expected no bytes behind them", next,
                             data_size));
  }
}

/// The shape as the library holds it, once it is known that it matches the bytes.
std::vector<std::int64_t> checked_shape(const ByteSource& source, const SafetensorsEntry& entry, ElementType type) {
  constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();
  const std::uint64_t bytes = entry.end - entry.begin;
  const bool empty = std::find(entry.shape.begin(), entry.shape.end(), 0U) != entry.shape.end();
  std::uint64_t count = empty ? 0 : 1;
  std::vector<std::int64_t> shape;
  shape.reserve(entry.shape.size());
  for (const std::uint64_t size : entry.shape) {
    if (size > kLargest || (!empty && count > kLargest / size)) {
      fail(source, entry, fmt::format("a shape with the size {} has more elements than 63 bits count", size));
    }
    if (!empty) count *= size;
    shape.push_back(static_cast<std::int64_t>(size));
  }
  const std::uint64_t element = size_of(type);
  if (bytes % element != 0 || bytes / element != count) {
    fail(source, entry,
         fmt::format("shape ({}) of {} is {} elements of {} bytes{}; data_offsets [{}, {}] hold {} bytes",
                     fmt::join(entry.shape, ", "), entry.dtype, count, element,
                     count <= kLargest / element ? fmt::format(", {} bytes", count * element) : "", entry.begin,
                     entry.end, bytes));
  }
  return shape;
}

SafetensorsFile read_from(const ByteSource& source) {
  const std::string header = read_header(source);
  const std::uint64_t data_start = kLengthBytes + header.size();
  std::vector<SafetensorsEntry> entries = parse_safetensors_header(header, source.name);
  check_offsets(source, entries, source.size - data_start);

  SafetensorsFile file;
  for (SafetensorsEntry& entry : entries) {
    const std::optional<ElementType> type = element_type_of(entry.dtype);
    if (!type) {
      file.unsupported.emplace(std::move(entry.name), std::move(entry.dtype));
      continue;
    }
    HostTensor tensor{*type, checked_shape(source, entry, *type), {}};
    make_room(tensor.bytes, static_cast<std::size_t>(entry.end - entry.begin), source,
              fmt::format("tensor {}", quoted_name(entry.name)));
    source.read(data_start + entry.begin, tensor.bytes);
    file.tensors.emplace(std::move(entry.name), std::move(tensor));
  }
  return file;
}

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

SafetensorsFile parse_safetensors(std::span<const std::byte> bytes, std::string_view file_name) {
  return read_from({file_name, bytes.size(), [bytes](std::uint64_t offset, std::span<std::byte> to) {
                      if (!to.empty()) std::memcpy(to.data(), bytes.data() + offset, to.size());
                    }});
}

SafetensorsFile read_safetensors(const std::filesystem::path& path) {
  const std::string name = path.string();
  std::error_code error;
  if (const auto status = std::filesystem::status(path, error); !std::filesystem::is_regular_file(status)) {
    throw std::invalid_argument(fmt::format("cannot read {}: {}; expected a safetensors file", name,
                                            error ? error.message() : "it is not a file"));
  }
  errno = 0;
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  if (!stream) throw std::invalid_argument(fmt::format("cannot open {} for reading: {}", name, reason(errno)));
  const std::streamoff size = stream.tellg();
  if (size < 0) throw std::invalid_argument(fmt::format("cannot find the size of {}: {}", name, reason(errno)));
  return read_from({name, static_cast<std::uint64_t>(size), [&](std::uint64_t offset, std::span<std::byte> to) {
                      if (to.empty()) return;
                      errno = 0;
                      stream.seekg(static_cast<std::streamoff>(offset));
                      stream.read(reinterpret_cast<char*>(to.data()), static_cast<std::streamsize>(to.size()));
                      if (stream) return;
                      throw std::invalid_argument(fmt::format("cannot read {} bytes at byte {} of {}: {}", to.size(),
                                                              offset, name,
                                                              errno ? reason(errno) : "the file ended early"));
                    }});
}

std::string serialize(const HostTensors& tensors) {
  std::vector<const HostTensors::value_type*> order;
  for (const auto& named : tensors) order.push_back(&named);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* a, const auto* b) { return size_of(a->second.type) > size_of(b->second.type); });

  std::string header = "{";
  std::size_t offset = 0;
  for (const auto* named : order) {
    const auto& [name, tensor] = *named;
    if (name == "__metadata__") throw std::invalid_argument("a tensor cannot have the name __metadata__");
    const auto count = static_cast<std::size_t>(tensor.count());
    const std::size_t bytes = tensor.bytes.size();
    if (bytes % size_of(tensor.type) != 0 || bytes / size_of(tensor.type) != count) {
      throw std::invalid_argument(fmt::format("tensor {} has shape {} of {} and {} bytes; expected {} elements",
                                              quoted_name(name), shape_text(tensor.shape), name_of(tensor.type), bytes,
                                              count));
    }
    std::string key;
    try {
      key = nlohmann::json(name).dump();
    } catch (const nlohmann::json::exception&) {
      throw std::invalid_argument(fmt::format("the tensor name {} is not UTF-8", quoted_name(name)));
    }
    header += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", header.size() > 1 ? "," : "",
                          key, dtype_text(tensor.type), fmt::join(tensor.shape, ","), offset, offset + bytes);
    offset += bytes;
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');

  const auto length = std::bit_cast<std::array<char, kLengthBytes>>(std::uint64_t{header.size()});
  std::string file(length.begin(), length.end());
  file.reserve(kLengthBytes + header.size() + offset);
  file += header;
  for (const auto* named : order) {
    const std::vector<std::byte>& bytes = named->second.bytes;
    if (!bytes.empty()) file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return file;
}

}  // namespace packjit
