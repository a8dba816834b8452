#include "cli/config_question.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "cli/database_access.hpp"
#include "cli/kernel_report.hpp"
#include "database/printable.hpp"
#include "runtime/config_choice.hpp"
#include "runtime/cuda_device.hpp"
#include "runtime/errors.hpp"

namespace packjit {
namespace {

/// The GPU that is asked about: of this machine, of the first database, or only an architecture.
GpuProperties asked_gpu(int number, const std::string& arch, const std::vector<Database>& given) {
  if (!arch.empty()) {
    require_arch(arch);
    GpuProperties gpu;
    gpu.name = "any GPU";
    gpu.arch = arch;
    return gpu;
  }
  const Database* named = nullptr;
  for (const Database& database : given) {
    if (!database.gpu) continue;
    if (named != nullptr && !same_model(*named->gpu, *database.gpu)) {
      throw std::invalid_argument(fmt::format(
          "'{}' is of {} and '{}' of {}, two GPU models: which one is asked about? Give databases of one, or "
          "an architecture (--arch)",
          named->origin, printable(named->gpu->name), database.origin, printable(database.gpu->name)));
    }
    if (named == nullptr) named = &database;
  }
  if (named != nullptr) return *named->gpu;
  const DriverSurvey survey = survey_driver();
  if (number < 0 || static_cast<std::size_t>(number) >= survey.gpus.size()) {
    throw EnvironmentError(
        fmt::format("there is no GPU with number {} here{}; name an architecture (--arch sm_90) or "
                    "the database of a GPU (--database FILE)",
                    number, survey.problem.empty() ? "" : ": " + survey.problem));
  }
  return gpu_properties(survey.gpus[static_cast<std::size_t>(number)]);
}

Choice choice_of(const Spec& spec, const Workload& work, const std::vector<Database>& given, const GpuProperties& gpu) {
  if (given.empty()) return choose_config(spec, gpu, work);
  std::vector<const Database*> databases;
  databases.reserve(given.size());
  for (const Database& database : given) databases.push_back(&database);
  return look_up(databases, spec, gpu, work);
}

}  // namespace

void ConfigQuestion::add_shape(CLI::App& command) {
  // Their product, the elements of a tensor, is a number of 64 bits.
  const auto size = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40);
  const auto channels = CLI::Range(std::int64_t{1}, std::int64_t{1} << 22);
  shape_options_ = {
      command.add_option("--tokens", work_.tokens, "tokens of all rows together")->check(size)->capture_default_str(),
      command.add_option("--sequences", work_.sequences, "sequences (default: tokens over the longest)")->check(size),
      command.add_option("--longest", work_.longest, "tokens of the longest (default: 2048, or all)")->check(size),
      command.add_option("--dim", work_.dim, "channels")->check(channels)->capture_default_str()};
}

void ConfigQuestion::add_gpu(CLI::App& command) {
  CLI::Option* gpu = command.add_option("--gpu", gpu_, "number of a GPU of this machine")->capture_default_str();
  CLI::Option* arch =
      command.add_option("--arch", arch_, "an architecture instead of a GPU of this machine, such as sm_90")
          ->type_name("ARCH");
  command
      .add_option("--database", databases_,
                  "documents to look into instead of this user's and the shipped ones; asks about their GPU")
      ->type_name("FILE");
  gpu->excludes(arch);
}

bool ConfigQuestion::has_shape() const {
  return std::ranges::any_of(shape_options_, [](const CLI::Option* option) { return option->count() > 0; });
}

Workload ConfigQuestion::shape() const {
  Workload work = work_;
  if (work.longest == 0) work.longest = std::min<std::int64_t>(work.tokens, 2048);
  if (work.sequences == 0) work.sequences = (work.tokens + work.longest - 1) / work.longest;
  if (work.longest > work.tokens) {
    throw std::invalid_argument(
        fmt::format("--longest {}: the longest sequence has at most all tokens ({})", work.longest, work.tokens));
  }
  if (work.sequences > work.tokens) {
    throw std::invalid_argument(
        fmt::format("--sequences {}: there are at most as many as tokens ({})", work.sequences, work.tokens));
  }
  // A product may be too large for 64 bits.
  if ((work.tokens - 1) / work.longest + 1 > work.sequences) {
    throw std::invalid_argument(fmt::format(
        "--sequences {}: so many of at most {} tokens (--longest) are fewer than --tokens {}; give at least "
        "{} sequences",
        work.sequences, work.longest, work.tokens, (work.tokens - 1) / work.longest + 1));
  }
  if (work.longest + work.sequences - 1 > work.tokens) {
    throw std::invalid_argument(
        fmt::format("--longest {}: beside it the other {} sequences have at least a token each, which are more than "
                    "--tokens {}",
                    work.longest, work.sequences - 1, work.tokens));
  }
  return work;
}

ConfigQuestion::Answer ConfigQuestion::answer(const Spec& spec) const { return answer(spec, arch_); }

ConfigQuestion::Answer ConfigQuestion::answer(const Spec& spec, const std::string& arch) const {
  const Workload work = shape();
  std::vector<Database> given;
  given.reserve(databases_.size());
  for (const std::string& path : databases_) given.push_back(read_database(path));
  const GpuProperties gpu = asked_gpu(gpu_, arch, given);
  return {gpu, choice_of(spec, work, given, gpu)};
}

}  // namespace packjit
