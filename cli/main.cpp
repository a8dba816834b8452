#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.hpp"
#include "cli/option_values.hpp"
#include "cli/terminal.hpp"
#include "runtime/errors.hpp"
#include "runtime/temporary_paths.hpp"

namespace packjit {
namespace {

/// The exit statuses of docs/design.md, section 8.
enum ExitStatus : int { success = 0, internal_error = 1, bad_input = 2, missing_environment = 3, check_failed = 4 };

/// One line a subcommand, in the order of the help page.
void register_commands(CLI::App& app) {
  register_doctor(app);
  register_pack(app);
  register_plan(app);
  register_generate(app);
  register_compile(app);
  register_inspect(app);
  register_explain(app);
  register_db(app);
  register_cache(app);
  register_run(app);
  register_verify(app);
  register_bench(app);
  register_tune(app);
}

/// A stream that was closed by the caller must not be taken over by the next file that is opened, whose contents the
/// stream's text would then destroy. It is opened the wrong way round, so that using it still fails.
void occupy_closed_streams() {
  for (int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) != -1) continue;
    // open() takes the lowest free number, which is this one: those below are in use by now.
    if (open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY) != descriptor) std::_Exit(internal_error);
  }
}

int report(ExitStatus status, const std::string& message) {
  const std::string line = "packjit: " + message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  return status;
}

/// The parser would complain about the options of a command that does not exist, or print the general help for it.
void require_command(const CLI::App& app, std::string_view word) {
  if (word.starts_with('-')) return;
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == word) return;
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  throw std::invalid_argument(
      fmt::format("there is no command '{}'; the commands are {}", word, fmt::join(names, ", ")));
}

int run(int argc, char** argv) {
  CLI::App app("Packed variable-length training for Mamba: generates, compiles, runs and checks its CUDA kernels.",
               "packjit");
  app.set_version_flag("--version", "packjit " PACKJIT_VERSION);
  app.require_subcommand(1);
  register_commands(app);
  check_option_values(app);
  if (argc > 1) require_command(app, argv[1]);
  try {
    app.parse(argc, argv);  // runs the subcommand's callback
  } catch (const CLI::Success& request) {
    // --help and --version: the text that the library would print, through our own checks.
    std::ostringstream text;
    app.exit(request, text, text);
    print_result(text.str());
  } catch (const CLI::ConversionError& error) {
    // The text of a number has been checked by then, so it is one that does not fit into what holds it.
    throw std::invalid_argument(fmt::format(
        "{}: expected a number that is nearer to 0 (packjit COMMAND --help lists the options)", error.what()));
  } catch (const CLI::Error& error) {
    throw std::invalid_argument(
        fmt::format("{} (packjit --help lists the subcommands, packjit COMMAND --help the options)", error.what()));
  }
  flush_results();
  return success;
}

int guarded_run(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::invalid_argument& error) {
    return report(bad_input, error.what());
  } catch (const EnvironmentError& error) {
    return report(missing_environment, error.what());
  } catch (const CheckFailed& error) {
    return report(check_failed, error.what());
  } catch (const OutOfMemory& error) {
    return report(missing_environment, error.what());
  } catch (const std::bad_alloc&) {
    return report(
        missing_environment,
        "out of memory; run it on a smaller input, where there is more memory, or with a higher limit (ulimit -v)");
  } catch (const std::exception& error) {
    return report(internal_error, error.what());
  }
}

}  // namespace
}  // namespace packjit

int main(int argc, char** argv) {
  packjit::occupy_closed_streams();
  std::signal(SIGCHLD, SIG_DFL);  // ignored, as a caller may pass it on, it hides how a worker ended
  packjit::remove_temporaries_on_signals();
  return packjit::guarded_run(argc, argv);
}
