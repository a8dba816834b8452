#include "cli/bench_rows.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tuning/prepared_call.hpp"

namespace packjit {
namespace {

constexpr int kCallsPerRepeat = 5;

CallSetting setting_of(const Bench& bench) { return {bench.instruments.device, bench.choices, bench.settings}; }

int sets_for(const Bench& bench, std::int64_t bytes) {
  return buffer_sets(bench.instruments.cache, bytes, bench.instruments.device.info().l2_bytes);
}

/// "block=128 ...", or where sequences differ in it each Config once.
std::string configs_text(const std::vector<PreparedCall>& calls) {
  std::vector<std::string> texts;
  for (const PreparedCall& call : calls) {
    std::string text = call.config.values.text();
    if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(std::move(text));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

/// Times the calls, one after the other, and fills in what follows from them.
void measure_calls(const Bench& bench, const std::vector<PreparedCall>& calls, int sets, BenchRow& row) {
  CudaDevice& device = bench.instruments.device;
  Buffer workspace;
  std::size_t turn = 0;
  // Many calls are launched for long enough already.
  const int repeated = calls.size() > 2 ? 1 : kCallsPerRepeat;
  row.times = measure(bench.instruments, repeated, [&] {
    const std::size_t set = turn++ % static_cast<std::size_t>(sets);
    run_calls(device, calls, set, workspace);
  });
  device.check_guards();
  row.buffer_sets = sets;
  row.launched_calls = static_cast<std::int64_t>(calls.size());
  row.workspace_bytes = static_cast<std::int64_t>(workspace.size());
  row.config = configs_text(calls);
  row.dim = bench.choices.dim;
  row.real_tokens = bench.shape.real_tokens();
  for (const PreparedCall& call : calls) row.work += work_of(call.spec, call.sizes, call.computed_tokens);
  row.limits = limits_of(row.work, {bench.bytes_per_second, row.times.highest_mhz, device.info().multiprocessors});
}

BenchRow named_row(Operator op, const Variant& variant, std::string_view way) {
  BenchRow row;
  row.name = name_of(op);
  row.variant = variant.label;
  row.way = way;
  return row;
}

std::optional<std::int64_t> saved_for(const Bench& bench, const Variant& variant, const BatchShape& shape) {
  if (!is_backward(variant.spec.op)) return std::nullopt;
  const Operator forward = is_scan(variant.spec.op) ? Operator::ssm_pack_fwd : Operator::conv1d_pack_fwd;
  return saved_bytes(spec_for(forward, bench.choices), variant.spec, batch_sizes(bench.choices, shape));
}

/// One call on the rows of a shape, with tensors of its own.
void measure_whole(const Bench& bench, const Variant& variant, const BatchShape& shape, BenchRow& row) {
  const Sizes sizes = batch_sizes(bench.choices, shape);
  const int sets = sets_for(bench, tensor_bytes(variant.spec, sizes));
  const BatchTensors tensors(bench.instruments.device, {&variant.spec, 1}, sizes, sets, bench.seed);
  row.computed_tokens = shape.real_tokens();
  row.saved_bytes = saved_for(bench, variant, shape);
  measure_calls(bench, {whole_call(setting_of(bench), variant.spec, shape, tensors)}, sets, row);
}

}  // namespace

bool fits_in_memory(std::int64_t needed, std::int64_t memory) {
  constexpr double kUsable = 0.9;
  return static_cast<double>(needed) <= kUsable * static_cast<double>(memory);
}

BenchRow packed_row(const Bench& bench, Operator op, const Variant& variant) {
  BenchRow row = named_row(op, variant, "packed");
  measure_whole(bench, variant, bench.shape, row);
  return row;
}

BenchRow padded_row(const Bench& bench, Operator op, const Variant& variant) {
  BenchRow row = named_row(op, variant, "padded");
  const BatchShape shape = padded_shape(bench.shape);
  const Sizes sizes = batch_sizes(bench.choices, shape);
  const std::int64_t tensors = tensor_bytes(variant.spec, sizes);
  const Plan launches =
      plan(variant.spec, config_for(setting_of(bench), variant.spec, shape), {sizes, shape.sequences()});
  const std::int64_t needed = sets_for(bench, tensors) * tensors + launches.workspace_bytes;
  const std::int64_t memory = bench.instruments.device.info().memory_bytes;
  if (!fits_in_memory(needed, memory)) {
    row.skipped = fmt::format("{} rows of {} need {:.1f} GB, the GPU has {:.1f} GB", shape.batch(), shape.seqlen,
                              static_cast<double>(needed) * 1e-9, static_cast<double>(memory) * 1e-9);
    return row;
  }
  measure_whole(bench, variant, shape, row);
  return row;
}

BenchRow one_by_one_row(const Bench& bench, Operator op, const Variant& variant) {
  BenchRow row = named_row(op, variant, "one_by_one");
  const Sizes sizes = batch_sizes(bench.choices, bench.shape);
  const int sets = sets_for(bench, tensor_bytes(variant.spec, sizes));
  const BatchTensors tensors(bench.instruments.device, {&variant.spec, 1}, sizes, sets, bench.seed);
  row.computed_tokens = bench.shape.real_tokens();
  row.saved_bytes = saved_for(bench, variant, bench.shape);
  measure_calls(bench, calls_of_sequences(setting_of(bench), variant.spec, bench.shape, tensors), sets, row);
  return row;
}

BenchRow together_row(const Bench& bench, const Variant& forward, const Variant& backward) {
  BenchRow row;
  row.name = fmt::format("{}+bwd", name_of(forward.spec.op));
  row.variant = backward.label;
  row.way = "packed";
  const Sizes sizes = batch_sizes(bench.choices, bench.shape);
  const std::int64_t bytes = tensor_bytes(forward.spec, sizes) + tensor_bytes(backward.spec, sizes);
  const int sets = sets_for(bench, bytes);
  const Spec specs[] = {forward.spec, backward.spec};
  const BatchTensors tensors(bench.instruments.device, specs, sizes, sets, bench.seed);
  row.computed_tokens = bench.shape.real_tokens();
  row.saved_bytes = saved_bytes(forward.spec, backward.spec, sizes);
  measure_calls(bench,
                {whole_call(setting_of(bench), forward.spec, bench.shape, tensors),
                 whole_call(setting_of(bench), backward.spec, bench.shape, tensors)},
                sets, row);
  return row;
}

}  // namespace packjit
