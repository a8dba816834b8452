#pragma once

#include <CLI/CLI.hpp>

namespace packjit {

// One function a subcommand, each in the file of its name. It adds the subcommand to `app`, with a callback that does
// the work and throws where it fails; main.cpp turns what was thrown into an exit status and a message. Results go to
// stdout (print_result), everything else to stderr.
void register_doctor(CLI::App& app);
void register_pack(CLI::App& app);
void register_plan(CLI::App& app);
void register_generate(CLI::App& app);
void register_compile(CLI::App& app);
void register_inspect(CLI::App& app);
void register_explain(CLI::App& app);
void register_db(CLI::App& app);
void register_cache(CLI::App& app);
void register_run(CLI::App& app);
void register_verify(CLI::App& app);
void register_bench(CLI::App& app);
void register_tune(CLI::App& app);

}  // namespace packjit
