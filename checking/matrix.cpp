#include "checking/matrix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "checking/checks.hpp"
#include "checking/random.hpp"
#include "checking/successive_calls.hpp"
#include "generator/shared_fields.hpp"
#include "generator/ssm_simple.hpp"

namespace packjit::checking {

namespace {

using Lengths = std::vector<std::int64_t>;

std::int64_t tokens(const Lengths& lengths) {
  std::int64_t sum = 0;
  for (const std::int64_t length : lengths) sum += length < 0 ? -length : length;
  return sum;
}

/// Fills a row up with random lengths; many are short, few are long.
void fill_up(Lengths& lengths, std::int64_t total, RandomStream& random) {
  for (std::int64_t left = total - tokens(lengths); left > 0; left = total - tokens(lengths)) {
    const std::int64_t longest = random.integer(0, 3) == 0 ? left : std::min<std::int64_t>(left, 20);
    lengths.push_back(random.integer(1, longest));
  }
}

std::int64_t tile_of(const Case& c, const std::string& arch) {
  if (is_scan(c.op) && is_simple_scan(spec_of(c))) return 16;  // they have no tiles; checkpoints 8 or 16 tokens apart
  const Config config = config_of(c, arch);
  return config.values.has("tile_tokens") ? config.values["tile_tokens"] : 16;
}

class Matrix {
 public:
  Matrix(std::string arch, Coverage coverage) : arch_(std::move(arch)), coverage_(coverage) {}

  std::vector<PlannedCase> build() {
    for (const Operator op : kOperators) {
      with_states(op);
      if (coverage_ == Coverage::quick) continue;
      random_lengths(op);
      without_states(op);
      bare_channel_major(op);
      steps_as_given(op);
      odd_sizes(op);
      strided(op);
      simple_scans(op);
      fp32_weights(op);
      if (coverage_ == Coverage::full) large(op);
    }
    return std::move(plans_);
  }

 private:
  Case base(Operator op, Dtype dtype) const {
    Case c;
    c.op = op;
    c.dtype = dtype;
    c.dim = 24;
    return c;
  }
  void rows_for(Case& c, std::uint64_t seed, bool padding) const {
    const std::int64_t taps = is_scan(c.op) ? 4 : c.conv_width;
    c.rows = telling_rows(taps, tile_of(c, arch_), seed, padding);
    c.seed = seed;
  }
  void add(Case c, std::vector<CheckKind> checks) { plans_.push_back({std::move(c), std::move(checks)}); }

  void with_states(Operator op) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
      Case c = base(op, dtype);
      c.name = "states";
      c.initial_states = c.final_states = true;
      rows_for(c, 1, true);
      if (coverage_ == Coverage::quick) {
        add(c, {CheckKind::oracle, CheckKind::stored_checkpoints, CheckKind::isolation});
      } else {
        add(c, all_checks());
      }
    }
  }
  void random_lengths(Operator op) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
      for (std::uint64_t seed = 2; seed < 5; ++seed) {
        Case c = base(op, dtype);
        c.name = fmt::format("random lengths {}", seed);
        c.initial_states = c.final_states = true;
        c.seed = seed;
        RandomStream random(seed, "rows");
        const std::int64_t total = random.integer(40, 300);
        for (std::int64_t row = random.integer(1, 3); row > 0; --row) {
          Lengths lengths;
          const std::int64_t before = random.integer(0, 6), after = random.integer(0, 6);
          if (before > 0) lengths.push_back(-before);
          fill_up(lengths, total - after, random);
          if (after > 0) lengths.push_back(-after);
          c.rows.push_back(row_of(lengths));
        }
        add(c, {CheckKind::oracle, CheckKind::padded});
      }
    }
  }
  void without_states(Operator op) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
      Case c = base(op, dtype);
      c.name = "no states, no padding";
      rows_for(c, 5, false);
      add(c, {CheckKind::oracle, CheckKind::padded, CheckKind::boundary_form, CheckKind::isolation});
      c.name = "one sequence a row";
      c.rows = {row_of({70}), row_of({70}), row_of({70})};
      add(c, {CheckKind::oracle, CheckKind::boundary_form, CheckKind::isolation});
    }
  }
  void bare_channel_major(Operator op) {
    Case c = base(op, Dtype::fp16);
    c.name = "bare, channel-major";
    c.layout = Layout::channel_major;
    c.softplus = c.D = c.z = c.delta_bias = c.bias = c.silu = false;
    rows_for(c, 6, true);
    add(c, {CheckKind::oracle, CheckKind::isolation});
  }
  void steps_as_given(Operator op) {
    if (!is_scan(op)) return;
    Case c = base(op, Dtype::fp32);
    c.name = "no softplus";
    c.softplus = false;
    c.initial_states = c.final_states = true;
    rows_for(c, 8, true);
    add(c, {CheckKind::oracle, CheckKind::cut});
  }
  void odd_sizes(Operator op) {
    Case c = base(op, Dtype::fp32);
    c.name = is_scan(op) ? "d_state 5, 3 groups" : "conv_width 7";
    c.dim = 21;
    c.d_state = 5;
    c.groups = 3;
    c.conv_width = 7;
    c.initial_states = c.final_states = true;
    rows_for(c, 7, true);
    add(c, {CheckKind::oracle, CheckKind::isolation, CheckKind::cut});
    if (is_scan(op)) return;
    for (const MapStorage map : {MapStorage::positions16, MapStorage::bits, MapStorage::offsets}) {
      c.map = map;
      c.name = fmt::format("conv_width 7, map stored as {}", kMapLabels[static_cast<std::size_t>(map)]);
      add(c, {CheckKind::oracle, CheckKind::isolation});
    }
  }
  void strided(Operator op) {
    Case c = base(op, Dtype::bf16);
    c.name = "dim 7, strided";
    c.dim = 7;
    c.layout = Layout::strided;
    c.initial_states = c.final_states = true;
    rows_for(c, 8, true);
    add(c, {CheckKind::oracle, CheckKind::isolation});
  }
  /// Constant B and C, complex A: each of them and together with what else matters.
  void simple_scans(Operator op) {
    if (!is_scan(op)) return;
    const std::vector<CheckKind> most = {CheckKind::oracle, CheckKind::cut, CheckKind::isolation, CheckKind::repeat};
    Case c = base(op, Dtype::fp32);
    c.initial_states = c.final_states = true;
    rows_for(c, 10, true);
    c.name = "constant B and C";
    c.constant_B = c.constant_C = true;
    add(c, most);

    c = base(op, Dtype::bf16);
    c.name = "complex";
    c.complex_A = c.initial_states = c.final_states = true;
    rows_for(c, 11, true);
    add(c, all_checks());

    c.dtype = Dtype::fp32;
    c.name = "complex, d_state 5, constant B, C of 3 groups";
    c.dim = 21;
    c.d_state = 5;
    c.groups = 3;
    c.constant_B = true;
    add(c, most);

    c = base(op, Dtype::fp16);
    c.name = "complex, constant C, bare, channel-major";
    c.layout = Layout::channel_major;
    c.complex_A = c.constant_C = true;
    c.softplus = c.D = c.z = c.delta_bias = false;
    rows_for(c, 12, false);
    add(c, {CheckKind::oracle, CheckKind::boundary_form, CheckKind::isolation});

    c = base(op, Dtype::bf16);
    c.name = "constant C, B of 2 groups, d_state 70, strided";
    c.layout = Layout::strided;
    c.dim = 12;
    c.d_state = 70;
    c.groups = 2;
    c.constant_C = true;
    rows_for(c, 13, true);
    add(c, {CheckKind::oracle, CheckKind::isolation});
  }
  /// fp32 weight and bias beside half activations: short accesses and long ones, wide filters, each layout.
  void fp32_weights(Operator op) {
    if (is_scan(op)) return;
    Case c = base(op, Dtype::bf16);
    c.name = "fp32 weights";
    c.fp32_weights = c.initial_states = c.final_states = true;
    rows_for(c, 14, true);
    add(c, all_checks());

    c.name = "fp32 weights, vectors of 8";
    c.config = {{"vector", "8"}};
    add(c, {CheckKind::oracle});

    c.config.clear();
    c.dtype = Dtype::fp16;
    c.name = "fp32 weights, conv_width 7, dim 21";
    c.conv_width = 7;
    c.dim = 21;
    rows_for(c, 15, true);
    add(c, {CheckKind::oracle, CheckKind::isolation, CheckKind::cut});

    c.name = "fp32 weights, bare, channel-major";
    c.layout = Layout::channel_major;
    c.bias = c.silu = c.initial_states = c.final_states = false;
    add(c, {CheckKind::oracle, CheckKind::isolation});
  }
  void large(Operator op) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
      Case c = base(op, dtype);
      c.name = "dim 512, rows of 2048";
      c.dim = 512;
      c.seed = 9;
      RandomStream random(9, "large");
      for (int row = 0; row < 2; ++row) {
        Lengths lengths = {-5};
        fill_up(lengths, 2048, random);
        c.rows.push_back(row_of(lengths));
      }
      add(c, {CheckKind::oracle, CheckKind::padded, CheckKind::repeat, CheckKind::isolation});
    }
  }

  std::string arch_;
  Coverage coverage_;
  std::vector<PlannedCase> plans_;
};

}  // namespace

std::vector<Row> telling_rows(std::int64_t taps, std::int64_t tile, std::uint64_t seed, bool padding) {
  RandomStream random(seed, "telling rows");
  Lengths edges;
  for (const std::int64_t length : {taps - 1, std::int64_t{1}, tile - 1, taps, tile, taps + 1, tile + 1}) {
    if (length > 0) edges.push_back(length);
  }
  Lengths ones(24, 1);
  if (padding) {
    edges.insert(edges.begin(), -3);
    edges.push_back(-4);
    ones.insert(ones.begin() + 10, -2);
  }
  const std::int64_t total = tokens(edges) + 9;
  if (padding) {
    edges.push_back(8);
    edges.push_back(-1);
  } else {
    edges.push_back(9);
  }
  fill_up(ones, total, random);
  Lengths longest = padding ? Lengths{-1, total - 1} : Lengths{total};
  return {row_of(edges), row_of(ones), row_of(longest)};
}

std::vector<CheckKind> all_checks() {
  return {CheckKind::oracle, CheckKind::second_config, CheckKind::stored_checkpoints,
          CheckKind::padded, CheckKind::cut,           CheckKind::isolation,
          CheckKind::repeat, CheckKind::thread_order,  CheckKind::boundary_form};
}

std::vector<PlannedCase> default_matrix(const std::string& arch, Coverage coverage) {
  return Matrix(arch, coverage).build();
}

std::vector<Result> run_plan(Device& device, std::span<Device* const> orders, const PlannedCase& plan) {
  const CaseRun run = first_run(device, plan.check_case);
  const Reference reference = compute_reference(run.check_case, run.inputs);
  std::vector<Result> results;
  for (const CheckKind kind : plan.checks) {
    std::vector<Result> more;
    switch (kind) {
      case CheckKind::oracle:
        more = check_against_oracle(run, reference);
        break;
      case CheckKind::second_config:
        more = check_second_config(device, run, reference);
        break;
      case CheckKind::stored_checkpoints:
        more = check_stored_checkpoints(device, run, reference);
        break;
      case CheckKind::padded:
        more = check_against_padded(device, run, reference.reduction);
        break;
      case CheckKind::cut:
        more = check_cut(device, run, reference);
        break;
      case CheckKind::isolation:
        more = check_isolation(device, run);
        break;
      case CheckKind::repeat:
        more = check_repeat(device, run);
        break;
      case CheckKind::thread_order:
        more = check_thread_orders(orders, run);
        break;
      case CheckKind::boundary_form:
        more = check_boundary_forms(device, run);
        break;
      case CheckKind::successive_calls:
      case CheckKind::cut_bits:  // these two need a plan of the packer: successive_calls.hpp
        break;
    }
    results.insert(results.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  return results;
}

}  // namespace packjit::checking
