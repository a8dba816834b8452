#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "database/lookup.hpp"

namespace packjit {

/// Which Config a shape gets: the options of subcommands that ask it.
class ConfigQuestion {
 public:
  /// --tokens, --sequences, --longest, --dim, --gpu, --arch and --database. Lives as long as the subcommand.
  void add_shape(CLI::App& command);
  void add_gpu(CLI::App& command);

  /// Whether any option of the shape was given.
  [[nodiscard]] bool has_shape() const;
  /// The shape, with defaults for what was not given. Throws std::invalid_argument for one that cannot be.
  [[nodiscard]] Workload shape() const;

  struct Answer {
    GpuProperties gpu;
    Choice choice;
  };
  /// Throws std::invalid_argument, or EnvironmentError where no GPU is there to be asked about.
  [[nodiscard]] Answer answer(const Spec& spec) const;
  /// The same for a named architecture.
  [[nodiscard]] Answer answer(const Spec& spec, const std::string& arch) const;

 private:
  Workload work_{.tokens = 32'768, .sequences = 0, .dim = 4096, .longest = 0};
  int gpu_ = 0;
  std::string arch_;
  std::vector<std::string> databases_;
  std::vector<const CLI::Option*> shape_options_;
};

}  // namespace packjit
