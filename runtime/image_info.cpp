#include "runtime/image_info.hpp"

#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>

namespace packjit {
namespace {

constexpr std::uint16_t kMachineCuda = 190;  // EM_CUDA
constexpr std::string_view kTextPrefix = ".text.";
constexpr std::string_view kSharedPrefix = ".nv.shared.";
constexpr std::string_view kReservedSection = ".nv.shared.reserved.0";
constexpr std::int64_t kReservedShared = 1024;  // bytes a block, counted in .nv.shared.* where that section exists

// Records of .nv.info sections: a format byte, an attribute byte, a 16-bit value or size, then `size` bytes for kSized.
constexpr std::uint8_t kSized = 4;
enum Attribute : std::uint8_t { kFrameSize = 0x11, kMinStackSize = 0x12, kRegisterCount = 0x2f };

[[noreturn]] void damaged(const std::string& what) { throw std::invalid_argument("not a whole cubin: " + what); }

// Bounds-checked view of the bytes; every read goes through at().
class Bytes {
 public:
  explicit Bytes(std::string_view data) : data_(data) {}
  template <typename T>
  T at(std::uint64_t offset, const char* what) const {
    T value;
    std::memcpy(&value, range(offset, sizeof(T), what).data(), sizeof(T));
    return value;
  }
  std::string_view range(std::uint64_t offset, std::uint64_t size, const char* what) const {
    if (offset > data_.size() || size > data_.size() - offset) {
      damaged(fmt::format("{} at byte {} with {} bytes ends past the {} bytes of the image", what, offset, size,
                          data_.size()));
    }
    return data_.substr(offset, size);
  }

 private:
  std::string_view data_;
};

std::string_view text_at(std::string_view table, std::uint64_t offset, const char* what) {
  if (offset >= table.size()) damaged(fmt::format("{} lies at byte {} of a table of {}", what, offset, table.size()));
  const std::string_view rest = table.substr(offset);
  const std::size_t end = rest.find('\0');
  if (end == std::string_view::npos) damaged(fmt::format("{} has no end", what));
  return rest.substr(0, end);
}

struct Section {
  std::string_view name;
  Elf64_Shdr header;
};

class Elf {
 public:
  explicit Elf(std::string_view cubin) : bytes_(cubin) {
    header_ = bytes_.at<Elf64_Ehdr>(0, "ELF header");
    if (std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0) damaged("it does not begin with the ELF magic");
    if (header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_ident[EI_DATA] != ELFDATA2LSB ||
        header_.e_machine != kMachineCuda) {
      damaged(fmt::format("ELF class {}, data {}, machine {}; expected class 2, data 1, machine {}",
                          int{header_.e_ident[EI_CLASS]}, int{header_.e_ident[EI_DATA]}, header_.e_machine,
                          kMachineCuda));
    }
    if (header_.e_shentsize != sizeof(Elf64_Shdr)) damaged("unexpected size of a section header");
    for (std::uint64_t i = 0; i < header_.e_shnum; ++i) sections_.push_back({{}, section_header(i)});
    if (header_.e_shstrndx >= sections_.size()) damaged("no section name table");
    const std::string_view names = contents(sections_[header_.e_shstrndx]);
    for (Section& section : sections_) section.name = text_at(names, section.header.sh_name, "section name");
    for (const Section& section : sections_) {
      if (section.header.sh_type == SHT_SYMTAB) symbols_ = &section;
    }
  }

  // The flags hold the architecture in the lowest byte or, from ABI 8 on, in the second lowest.
  int arch() const {
    constexpr int kNewAbi = 8;
    return static_cast<int>(header_.e_ident[EI_ABIVERSION] >= kNewAbi ? header_.e_flags >> 8 : header_.e_flags) & 0xff;
  }
  const std::vector<Section>& sections() const { return sections_; }
  const Section* find(std::string_view name) const {
    const auto it = std::find_if(sections_.begin(), sections_.end(), [&](const Section& s) { return s.name == name; });
    return it != sections_.end() ? &*it : nullptr;
  }
  std::string_view contents(const Section& section) const {
    if (section.header.sh_type == SHT_NOBITS) return {};
    return bytes_.range(section.header.sh_offset, section.header.sh_size, "section");
  }
  std::optional<std::string_view> symbol_name(std::uint32_t index) const {
    if (symbols_ == nullptr || symbols_->header.sh_link >= sections_.size()) return std::nullopt;
    const Bytes table(contents(*symbols_));
    const auto symbol = table.at<Elf64_Sym>(std::uint64_t{index} * sizeof(Elf64_Sym), "symbol");
    return text_at(contents(sections_[symbols_->header.sh_link]), symbol.st_name, "symbol name");
  }

 private:
  Elf64_Shdr section_header(std::uint64_t index) const {
    // e_shoff is checked first, so that the sum below cannot wrap.
    bytes_.range(header_.e_shoff, 0, "section table");
    return bytes_.at<Elf64_Shdr>(header_.e_shoff + index * sizeof(Elf64_Shdr), "section header");
  }

  Bytes bytes_;
  Elf64_Ehdr header_{};
  std::vector<Section> sections_;
  const Section* symbols_ = nullptr;
};

// Applies the records of the image's .nv.info section, which speak of every kernel and function by symbol index.
void apply_records(const Elf& elf, std::string_view records, std::vector<KernelInfo>& kernels) {
  const Bytes bytes(records);
  for (std::uint64_t at = 0; at < records.size();) {
    const auto format = bytes.at<std::uint8_t>(at, "attribute format");
    const auto attribute = bytes.at<std::uint8_t>(at + 1, "attribute");
    const auto size = bytes.at<std::uint16_t>(at + 2, "attribute size");
    at += 4;
    if (format != kSized) continue;
    const Bytes payload(bytes.range(at, size, "attribute value"));
    at += size;
    if (attribute != kFrameSize && attribute != kMinStackSize && attribute != kRegisterCount) continue;
    const auto symbol = elf.symbol_name(payload.at<std::uint32_t>(0, "attribute's symbol"));
    const auto value = payload.at<std::uint32_t>(4, "attribute's number");
    const auto kernel =
        std::find_if(kernels.begin(), kernels.end(), [&](const KernelInfo& k) { return symbol && k.name == *symbol; });
    if (kernel == kernels.end()) continue;
    if (attribute == kFrameSize) kernel->frame_bytes = value;
    if (attribute == kMinStackSize) kernel->stack_bytes = value;
    if (attribute == kRegisterCount) kernel->registers = static_cast<int>(value & 0xffff);
  }
}

std::int64_t number_before(std::string_view line, std::string_view words) {
  const std::size_t end = line.find(words);
  if (end == std::string_view::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  std::int64_t value = 0;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

}  // namespace

ImageInfo read_image(std::string_view cubin) {
  const Elf elf(cubin);
  ImageInfo image;
  image.arch = elf.arch();
  for (const Section& section : elf.sections()) {
    if (!section.name.starts_with(kTextPrefix) || section.header.sh_type != SHT_PROGBITS) continue;
    elf.contents(section);  // the code must be there
    KernelInfo kernel;
    kernel.name = section.name.substr(kTextPrefix.size());
    // Kernels, and not device functions, have an info section of their own.
    if (elf.find(fmt::format(".nv.info.{}", kernel.name)) == nullptr) continue;
    kernel.code_bytes = static_cast<std::int64_t>(section.header.sh_size);
    // Until ABI 7 the register count stands in the top byte of sh_info; later it is a record.
    kernel.registers = static_cast<int>(section.header.sh_info >> 24);
    if (const Section* shared = elf.find(fmt::format("{}{}", kSharedPrefix, kernel.name))) {
      const auto size = static_cast<std::int64_t>(shared->header.sh_size);
      const std::int64_t reserved = elf.find(kReservedSection) != nullptr ? kReservedShared : 0;
      kernel.shared_bytes = std::max<std::int64_t>(0, size - reserved);
    }
    image.kernels.push_back(std::move(kernel));
  }
  std::sort(image.kernels.begin(), image.kernels.end(),
            [](const KernelInfo& a, const KernelInfo& b) { return a.name < b.name; });
  if (const Section* info = elf.find(".nv.info")) apply_records(elf, elf.contents(*info), image.kernels);
  return image;
}

std::vector<SpillReport> spills_in_log(std::string_view log) {
  constexpr std::string_view kHeading = "Function properties for ";
  std::vector<SpillReport> reports;
  std::string kernel;
  while (!log.empty()) {
    const std::size_t end = std::min(log.find('\n'), log.size());
    const std::string_view line = log.substr(0, end);
    log.remove_prefix(std::min(end + 1, log.size()));
    if (const std::size_t at = line.find(kHeading); at != std::string_view::npos) {
      kernel = line.substr(at + kHeading.size());
    } else if (!kernel.empty() && line.find("bytes spill stores") != std::string_view::npos) {
      reports.push_back(
          {kernel, number_before(line, " bytes spill stores"), number_before(line, " bytes spill loads")});
      kernel.clear();
    }
  }
  return reports;
}

}  // namespace packjit
