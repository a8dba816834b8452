#include "cli/bench_peers.hpp"

#include <fmt/format.h>

#include <fstream>
#include <stdexcept>
#include <system_error>

#include "cli/output_file.hpp"
#include "database/record_json.hpp"
#include "runtime/errors.hpp"
#include "runtime/host/child_process.hpp"
#include "runtime/host/host_compiler.hpp"

namespace packjit {

nlohmann::json run_peers(const std::string& python, const nlohmann::json& report) {
  constexpr int kMissing = 3, kNotFound = 127;  // the script's own status, and that of env
  const host::PrivateDirectory folder;
  const std::string asked = folder.path() + "/report.json", measured = folder.path() + "/peers.json";
  write_output_file(asked, dump_text(report));
  host::ChildResult done;
  try {
    // env finds the interpreter in PATH.
    done = host::run_program(
        {"/usr/bin/env", python, "-c", std::string(peers_script()), "--report", asked, "--out", measured});
  } catch (const std::system_error& error) {
    throw EnvironmentError(fmt::format("could not run --peers '{}': {}", python, error.what()));
  }
  if (done.status == kMissing) throw EnvironmentError(fmt::format("--peers {}: {}", python, done.output));
  if (done.status == kNotFound) {
    throw EnvironmentError(
        fmt::format("could not run --peers '{}': {}; give the path of a Python", python, done.output));
  }
  if (done.status != 0) {
    throw std::runtime_error(fmt::format("--peers {} ended with status {}: {}", python, done.status, done.output));
  }
  std::ifstream file(measured);
  nlohmann::json result = nlohmann::json::parse(file, nullptr, false);
  if (result.is_discarded()) {
    throw std::runtime_error(fmt::format("--peers {}: the script wrote no report; it said: {}", python, done.output));
  }
  return result;
}

}  // namespace packjit
