#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cli/cache_access.hpp"
#include "cli/commands.hpp"
#include "cli/kernel_report.hpp"
#include "cli/output_file.hpp"
#include "cli/source_file.hpp"
#include "cli/spec_options.hpp"
#include "cli/terminal.hpp"
#include "database/record_json.hpp"
#include "runtime/edited_source.hpp"
#include "runtime/errors.hpp"

namespace packjit {
namespace {

namespace fs = std::filesystem;

struct CompileOptions {
  SpecOptions spec;
  std::string archs;
  std::string source;
  std::string output;
  std::string bundle;
  bool cache = false;
  bool forbid_spills = false;
  bool json = false;
};

std::vector<std::string> wanted_archs(const CompileOptions& options, const Nvrtc& nvrtc) {
  if (options.archs.empty()) return {default_arch(nvrtc)};
  if (options.archs == "all") return nvrtc.archs();
  std::vector<std::string> archs;
  std::string_view rest = options.archs;
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string arch(rest.substr(0, comma));
    if (arch.empty()) {
      throw std::invalid_argument(
          fmt::format("--arch '{}': expected architectures like sm_90, separated by commas, or all", options.archs));
    }
    if (arch == "all") {
      throw std::invalid_argument(
          fmt::format("--arch '{}': 'all' stands alone; it holds every architecture", options.archs));
    }
    if (std::find(archs.begin(), archs.end(), arch) == archs.end()) archs.push_back(arch);
    if (comma == std::string_view::npos) return archs;
    rest.remove_prefix(comma + 1);
  }
}

// Where the images go: into a folder under names made of operator and architecture, or one image into one file.
class ImageWriter {
 public:
  ImageWriter(const std::string& output, std::size_t arch_count) {
    if (output.empty()) return;
    path_ = output;
    const std::string extension = path_.extension().string();
    std::error_code error;
    if (output.back() == '/' || fs::is_directory(path_, error)) {
      folder_ = true;
      fs::create_directories(path_, error);
      if (error) throw std::invalid_argument(fmt::format("cannot create the folder '{}': {}", output, error.message()));
    } else if (extension != ".cubin" && extension != ".ptx") {
      throw std::invalid_argument(fmt::format(
          "-o '{}': expected an existing folder, a folder that ends in '/', or a file that ends in .cubin or .ptx",
          output));
    } else if (arch_count != 1) {
      throw std::invalid_argument(fmt::format(
          "-o '{}': {} architectures do not fit into one file; give one --arch, or a folder", output, arch_count));
    }
  }
  /// The files that write() makes for an architecture.
  std::vector<fs::path> files(Operator op, const std::string& arch) const {
    if (path_.empty()) return {};
    if (!folder_) return {path_};
    const std::string stem = fmt::format("{}.{}", name_of(op), arch);
    return {path_ / (stem + ".cubin"), path_ / (stem + ".ptx")};
  }
  std::vector<std::string> write(Operator op, const OperatorReport& report) const {
    std::vector<std::string> written;
    for (const fs::path& file : files(op, report.arch)) {
      write_output_file(file, file.extension() == ".ptx" ? report.compiled.ptx : report.compiled.cubin);
      written.push_back(file.string());
    }
    return written;
  }

 private:
  fs::path path_;
  bool folder_ = false;
};

std::string table_of(const std::vector<OperatorReport>& reports) {
  const auto row = [](const auto&... cells) {
    std::string line = fmt::format("{:<8} {:<32} {:>9} {:>7} {:>7} {:>8} {:>6} {:>9} {:>10} {:>8}", cells...);
    return line.erase(line.find_last_not_of(' ') + 1) + "\n";
  };
  std::string text =
      row("arch", "kernel", "registers", "local", "spilled", "shared", "block", "blocks/SM", "cubin", "seconds");
  for (const OperatorReport& report : reports) {
    bool first = true;
    for (const KernelReport& kernel : report.kernels) {
      const std::int64_t spilled = kernel.spills ? kernel.spills->store_bytes + kernel.spills->load_bytes : 0;
      text += row(first ? report.arch : "", kernel.image.name, kernel.image.registers,
                  std::max(kernel.image.frame_bytes, kernel.image.stack_bytes),
                  kernel.spills ? fmt::format("{}", spilled) : "?", kernel.shared_bytes(), kernel.block,
                  kernel.occupancy ? fmt::format("{}", kernel.occupancy->blocks) : "?",
                  first ? fmt::format("{}", report.compiled.cubin.size()) : "",
                  first ? fmt::format("{:.2f}", report.compiled.seconds) : "");
      first = false;
    }
  }
  return text + "local, spilled: bytes a thread (loads and stores); shared: bytes a block; cubin: bytes\n";
}

std::string spilling_kernels(const std::vector<OperatorReport>& reports) {
  std::string found;
  for (const OperatorReport& report : reports) {
    for (const KernelReport& kernel : report.kernels) {
      if (kernel.image.spill_free()) continue;
      found +=
          fmt::format("{}{} on {} uses {} bytes of local memory a thread", found.empty() ? "" : "; ", kernel.image.name,
                      report.arch, std::max(kernel.image.frame_bytes, kernel.image.stack_bytes));
    }
  }
  return found;
}

void run_compile(const CompileOptions& options) {
  Spec spec = options.spec.spec();
  std::optional<std::string> edited;
  std::optional<Config> edited_config;
  if (!options.source.empty()) {
    edited = read_source_file(options.source);
    const SourceOrigin origin = origin_of(*edited, spec, options.spec.config(spec, "sm_90"), Target::cuda);
    options.spec.require_agreement(origin.spec, origin.config);
    require_target(*edited, origin, Target::cuda);
    spec = origin.spec;
    edited_config = origin.config;
  }
  const auto nvrtc = Nvrtc::shared();
  const std::vector<std::string> archs = wanted_archs(options, *nvrtc);
  const ImageWriter writer(options.output, archs.size());
  std::optional<OutputFile> bundle;
  if (!options.bundle.empty()) bundle.emplace(options.bundle);
  refuse_same_file("--source", options.source, "--bundle", options.bundle);
  for (const std::string& arch : archs) {
    for (const fs::path& file : writer.files(spec.op, arch)) {
      refuse_same_file("--source", options.source, "-o", file);
      refuse_same_file("--bundle", options.bundle, "-o", file);
    }
  }
  // That it is off is known before the work is done.
  const auto disk = options.cache ? open_disk_cache(DiskCache::Missing::make) : nullptr;

  std::vector<OperatorReport> reports;
  Progress progress("compiling", static_cast<std::int64_t>(archs.size()));
  for (const std::string& arch : archs) {
    progress.set_label("compiling for " + arch);
    const Config config = edited_config ? *edited_config : options.spec.config(spec, arch);
    reports.push_back(report_operator(*nvrtc, spec, config, arch, edited));
    progress.advance();
  }
  nlohmann::ordered_json images = nlohmann::ordered_json::array();
  for (const OperatorReport& report : reports) {
    nlohmann::ordered_json json = json_of(report);
    json["files"] = writer.write(spec.op, report);
    images.push_back(std::move(json));
  }
  std::vector<CacheEntry> entries;
  if (disk != nullptr || bundle) entries = entries_of(reports, nvrtc);
  if (disk != nullptr) {
    require_room(*disk, entries, "put the kernels into the disk cache (--cache)");
    fill(*disk, entries);
  }
  if (bundle) {
    bundle->write(bundle_of(std::move(entries)));
    bundle->commit();
  }
  const std::string spilling = spilling_kernels(reports);
  if (options.json) {
    const nlohmann::ordered_json json = {{"operator", name_of(spec.op)},
                                         {"spec", spec.values.text()},
                                         {"nvrtc", nvrtc->version_text()},
                                         {"spill_free", spilling.empty()},
                                         {"images", images}};
    print_result(dump_text(json, 2) + "\n");
  } else {
    std::string text = fmt::format("{} {}\nNVRTC {}\n\n{}", name_of(spec.op), spec.values.text(), nvrtc->version_text(),
                                   table_of(reports));
    text += spilling.empty() ? "No spills, no local memory.\n" : spilling + ".\n";
    for (const auto& image : images) {
      for (const auto& file : image["files"]) text += fmt::format("wrote {}\n", file.get<std::string>());
    }
    if (options.cache) text += fmt::format("put {} entries into the disk cache\n", reports.size());
    if (bundle) text += fmt::format("wrote {}\n", options.bundle);
    print_result(text);
  }
  if (options.forbid_spills && !spilling.empty()) throw CheckFailed("--forbid-spills: " + spilling);
}

}  // namespace

void register_compile(CLI::App& app) {
  auto options = std::make_shared<CompileOptions>();
  CLI::App* command = app.add_subcommand("compile", "Compiles an operator for named architectures; needs no GPU");
  options->spec.add_operator_and_spec(*command);
  options->spec.add_config(*command);
  command
      ->add_option("--arch", options->archs,
                   "sm_90, several separated by commas, or all that NVRTC lists (default: the GPU's, or sm_90)")
      ->type_name("ARCH");
  command
      ->add_option("--source", options->source,
                   "compiles this file, printed by packjit generate and edited; its key gives SPEC and Config")
      ->type_name("FILE");
  command
      ->add_option("-o,--output", options->output,
                   "writes cubin and PTX: a folder (ends in '/' if new), or one .cubin or .ptx file")
      ->type_name("PATH");
  command->add_flag("--cache", options->cache, "puts the kernels into the disk cache, for processes on this machine");
  command
      ->add_option("--bundle", options->bundle,
                   "writes the kernels to one file that packjit cache import reads, for other machines")
      ->type_name("FILE");
  command->add_flag("--forbid-spills", options->forbid_spills, "exit status 4 where a kernel uses local memory");
  command->add_flag("--json", options->json, "prints JSON");
  command->callback([options] { run_compile(*options); });
}

}  // namespace packjit
