#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "checking/case.hpp"
#include "checking/reference.hpp"
#include "checking/report.hpp"

/// Each check runs one case in one way and returns one Result a tensor. All throw what the device throws.
namespace packjit::checking {

/// Runs a case on inputs as from make_inputs; inputs and outputs are token-major whatever the case's layout.
/// `config` replaces the case's own; `boundaries` the position_indices form.
[[nodiscard]] HostTensors run_case(Device& device, const Case& check_case, const HostTensors& inputs,
                                   const std::optional<Config>& config = {},
                                   const std::optional<Boundaries>& boundaries = {});

/// A Config that differs from the case's in every field that can differ, and computes the same.
[[nodiscard]] Config second_config(const Case& check_case, const std::string& arch);
/// The built-in Config for so little work that it would not fill a GPU.
[[nodiscard]] Config little_work_config(const Case& check_case, const std::string& arch);

/// A case with what several checks share: its inputs and its first outputs.
struct CaseRun {
  Case check_case;
  HostTensors inputs;
  HostTensors outputs;
};
[[nodiscard]] CaseRun first_run(Device& device, const Case& check_case);

[[nodiscard]] std::vector<Result> check_against_oracle(const CaseRun& run, const Reference& reference);
[[nodiscard]] std::vector<Result> check_second_config(Device& device, const CaseRun& run, const Reference& reference);
/// A run of ssm_pack_bwd again, with the checkpoints that a call of ssm_pack_fwd has stored.
[[nodiscard]] CaseRun run_with_stored_checkpoints(Device& device, const CaseRun& run);
/// The scan's backward in that way, with the built-in Config; nothing for other operators.
[[nodiscard]] std::vector<Result> check_stored_checkpoints(Device& device, const CaseRun& run,
                                                           const Reference& reference);
/// Each sequence alone in its own padded row; the padded run is the reference.
[[nodiscard]] std::vector<Result> check_against_padded(Device& device, const CaseRun& run, double reduction);
/// Changes all values of one sequence to others, to NaN and to infinity, and all padding to NaN.
[[nodiscard]] std::vector<Result> check_isolation(Device& device, const CaseRun& run);
/// The same for a sequence of the caller's choice; padding is left alone. Needs two sequences or more.
[[nodiscard]] std::vector<Result> check_isolation_of(Device& device, const CaseRun& run, std::size_t victim);
[[nodiscard]] std::vector<Result> check_repeat(Device& device, const CaseRun& run);
[[nodiscard]] std::vector<Result> check_boundary_forms(Device& device, const CaseRun& run);
/// The same bits on other devices: host execution under other orders.
[[nodiscard]] std::vector<Result> check_thread_orders(std::span<Device* const> devices, const CaseRun& run);

}  // namespace packjit::checking
