// packjit bench ops: the four operators on packed data of one GPU, each time beside the bytes it has to move.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <random>

#include "cli/bench_map.hpp"
#include "cli/commands.hpp"
#include "cli/terminal.hpp"
#include "runtime/cuda_device.hpp"
#include "runtime/nvrtc.hpp"
#include "runtime/operator_call.hpp"

namespace packjit {
namespace {

struct Options {
  std::int64_t tokens = 32768;
  std::int64_t dim = 4096;
  int d_state = 16;
  int conv_width = 4;
  std::string dtype = "bf16";
  int repeats = 30;
  std::uint64_t seed = 1;
  std::vector<std::string> only;
  std::vector<std::string> set;
  bool json = false;
};

/// Lengths that fill `tokens`: log-normal, held between 57 and 2048, mean about 640; the last is cut to fit.
std::vector<std::int64_t> lognormal_lengths(std::int64_t tokens, std::uint64_t seed) {
  constexpr double kLogMean = 6.2, kLogDeviation = 0.75, kShortest = 57, kLongest = 2048;
  std::mt19937_64 random(seed);
  const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  std::vector<std::int64_t> lengths;
  for (std::int64_t left = tokens; left > 0;) {
    const double normal = std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform());
    const double length = std::clamp(std::exp(kLogMean + kLogDeviation * normal), kShortest, kLongest);
    lengths.push_back(std::min<std::int64_t>(left, std::llround(length)));
    left -= lengths.back();
  }
  return lengths;
}

/// Dense tensors of one operator in device memory, with random contents of a realistic scale.
class Tensors {
 public:
  Tensors(Device& device, const Spec& spec, const Sizes& sizes, std::uint64_t seed) : device_(device), random_(seed) {
    for (const TensorRule& rule : tensor_rules(spec.op)) {
      if (!rule.field.empty() && spec.values[rule.field] == 0) continue;
      TensorView view;
      for (std::string_view symbol : shape_symbols(rule.shape)) view.size.push_back(sizes[symbol]);
      view.stride.assign(view.size.size(), 1);
      for (std::size_t i = view.size.size(); i-- > 1;) view.stride[i - 1] = view.stride[i] * view.size[i];
      view.type = rule.always_fp32 ? ElementType::fp32 : element_type(static_cast<Dtype>(spec.values["dtype"]));
      const std::int64_t count = view.stride[0] * view.size[0];
      buffers_.emplace_back(device, static_cast<std::size_t>(count) * size_of(view.type));
      view.data = buffers_.back().data();
      if (!rule.output) fill(rule.name, view, count);
      bytes_ += count * static_cast<std::int64_t>(size_of(view.type));
      views_.emplace(rule.name, view);
    }
  }
  [[nodiscard]] const TensorViews& views() const { return views_; }
  /// Bytes of all inputs and outputs: the least that a call can move.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  void fill(std::string_view name, const TensorView& view, std::int64_t count) {
    constexpr std::int64_t kChunk = 1 << 20;  // elements; random numbers are slow, so large tensors repeat them
    std::normal_distribution<double> normal;
    std::vector<double> values(static_cast<std::size_t>(std::min(count, kChunk)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double x = normal(random_);
      // dt = softplus(delta + bias) between about 0.001 and 0.1, A = -(1..d_state), as a Mamba model starts.
      values[i] = name == "delta"        ? x
                  : name == "delta_bias" ? -4.0 + x
                  : name == "A"          ? -1.0 - static_cast<double>(static_cast<std::int64_t>(i) % view.size[1])
                                         : x;
    }
    const HostTensor chunk = HostTensor::from_double(view.type, {static_cast<std::int64_t>(values.size())}, values);
    const std::int64_t total = count * static_cast<std::int64_t>(size_of(view.type));
    for (std::int64_t at = 0; at < total; at += static_cast<std::int64_t>(chunk.bytes.size())) {
      const std::int64_t part = std::min<std::int64_t>(static_cast<std::int64_t>(chunk.bytes.size()), total - at);
      device_.write(static_cast<std::byte*>(view.data) + at, chunk.bytes.data(), static_cast<std::size_t>(part));
    }
  }

  Device& device_;
  std::mt19937_64 random_;
  std::vector<Buffer> buffers_;
  TensorViews views_;
  std::int64_t bytes_ = 0;
};

struct Times {
  double median_ms, low_ms, high_ms;  // low and high: 10 % and 90 % of the repeats
};

Times measure(CudaDevice& device, int repeats, const std::function<void()>& work) {
  constexpr int kCallsPerRepeat = 5;  // so that the host, which runs ahead, is not what is measured
  for (int i = 0; i < 3; ++i) work();
  device.synchronize();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const float ms = device.elapsed_ms([&] {
      for (int call = 0; call < kCallsPerRepeat; ++call) work();
    });
    times.push_back(static_cast<double>(ms) / kCallsPerRepeat);
  }
  std::sort(times.begin(), times.end());
  const auto at = [&](double part) {
    return times[static_cast<std::size_t>(part * static_cast<double>(times.size() - 1))];
  };
  return {at(0.5), at(0.1), at(0.9)};
}

/// Bytes read and written a second by a copy of 1 GiB with 16-byte accesses, the bandwidth that rows are compared to.
double copy_bandwidth(CudaDevice& device, int repeats) {
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  constexpr unsigned kBlock = 256, kGrid = 132 * 16;
  const auto module = device.load_text(
      "struct alignas(16) Sixteen { unsigned word[4]; };\n"
      "struct Copy { const Sixteen* from; Sixteen* to; long long count; };\n"
      "extern \"C\" __global__ void copy(const Copy c) {\n"
      "  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < c.count; i += gridDim.x * 256ll) c.to[i] = "
      "c.from[i];\n"
      "}\n");
  const Buffer from(device, kBytes), to(device, kBytes);
  device.fill(from.data(), 0x3C, kBytes);
  struct {
    const void* from;
    void* to;
    long long count;
  } argument{from.data(), to.data(), kBytes / 16};
  const Times times = measure(device, repeats, [&] {
    device.launch(*module, {"copy", kGrid, 1, kBlock, 0}, std::as_bytes(std::span(&argument, 1)));
  });
  return 2.0 * static_cast<double>(kBytes) / (times.median_ms * 1e-3);
}

nlohmann::json bench_operator(CudaDevice& device, Operator op, const Options& options, const SequenceMap& map,
                              double bandwidth) {
  Spec spec(op);
  spec.values.set_text("dtype", options.dtype);
  if (is_scan(op)) spec.values.set("d_state", options.d_state);
  if (!is_scan(op)) spec.values.set("conv_width", options.conv_width);
  Config config = builtin_config(spec, device.info().arch, Workload{options.tokens, map.n_sequences, options.dim});
  for (const std::string& assignment : options.set) {
    const std::size_t equals = assignment.find('=');
    const std::string name = assignment.substr(0, equals);
    if (equals == std::string::npos) throw std::invalid_argument("--set takes key=value, not '" + assignment + "'");
    config.values.set_text(name, assignment.substr(equals + 1));
  }
  Sizes sizes;
  sizes.batch = map.batch;
  sizes.seqlen = map.seqlen;
  sizes.dim = options.dim;
  sizes.groups = 1;
  sizes.d_state = options.d_state;
  sizes.conv_width = options.conv_width;
  sizes.history = options.conv_width - 1;
  sizes.n_sequences = map.n_sequences;
  const Tensors tensors(device, spec, sizes, options.seed);
  specialise(spec, config, tensors.views());
  const MappedSequences sequences(device, map);
  Buffer workspace;
  const Times times = measure(device, options.repeats,
                              [&] { run_operator(device, spec, config, tensors.views(), sequences, workspace); });
  device.check_guards();
  const double elements = static_cast<double>(map.batch * map.seqlen * options.dim);
  const double limit_ms = static_cast<double>(tensors.bytes()) / bandwidth * 1e3;
  return {{"operator", name_of(op)},
          {"median_ms", times.median_ms},
          {"p10_ms", times.low_ms},
          {"p90_ms", times.high_ms},
          {"giga_elements_per_second", elements / times.median_ms * 1e-6},
          {"bytes", tensors.bytes()},
          {"memory_limit_ms", limit_ms},
          {"share_of_memory_limit", limit_ms / times.median_ms},
          {"workspace_bytes", workspace.size()},
          {"config", config.values.text()}};
}

std::string today() {
  const auto now = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
  const std::chrono::year_month_day date(now);
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()));
}

void bench_ops(const Options& options) {
  if (options.tokens < 1 || options.dim < 1 || options.repeats < 1) {
    throw std::invalid_argument(fmt::format("bench ops: tokens {}, dim {} and repeats {} must all be at least 1",
                                            options.tokens, options.dim, options.repeats));
  }
  const auto device = CudaDevice::open();
  std::vector<std::int64_t> offsets = {0};
  for (const std::int64_t length : lognormal_lengths(options.tokens, options.seed)) {
    offsets.push_back(offsets.back() + length);
  }
  Boundaries boundaries;
  boundaries.form = Boundaries::Form::cu_seqlens;
  boundaries.values = offsets;
  const SequenceMap map = build_sequence_map(boundaries, 1, options.tokens);
  const double bandwidth = copy_bandwidth(*device, options.repeats);

  nlohmann::json report = {{"date", today()},
                           {"gpu", device->info().name},
                           {"arch", device->info().arch},
                           {"nvrtc", Nvrtc::shared()->version_text()},
                           {"copy_bytes_per_second", bandwidth},
                           {"tokens", options.tokens},
                           {"sequences", map.n_sequences},
                           {"longest", map.max_seqlen},
                           {"dim", options.dim},
                           {"d_state", options.d_state},
                           {"conv_width", options.conv_width},
                           {"dtype", options.dtype},
                           {"repeats", options.repeats},
                           {"cache_state", "one set of buffers; what fits in the L2 stays there between calls"}};
  std::string table = fmt::format("{:<17} {:>10} {:>19} {:>12} {:>14}\n", "operator", "median ms", "10 % to 90 %",
                                  "G elem/s", "memory limit");
  for (const Operator op : kOperators) {
    const std::string name(name_of(op));
    if (!options.only.empty() && std::find(options.only.begin(), options.only.end(), name) == options.only.end()) {
      continue;
    }
    const nlohmann::json row = bench_operator(*device, op, options, map, bandwidth);
    table += fmt::format("{:<17} {:>10.4f} {:>9.4f} {:>9.4f} {:>12.1f} {:>11.4f} ms\n", name,
                         row["median_ms"].get<double>(), row["p10_ms"].get<double>(), row["p90_ms"].get<double>(),
                         row["giga_elements_per_second"].get<double>(), row["memory_limit_ms"].get<double>());
    report["operators"].push_back(row);
  }
  if (options.json) {
    print_result(report.dump(2) + "\n");
    return;
  }
  print_result(fmt::format("{}, copy {:.2f} TB/s; {} sequences, {} tokens, dim {}, d_state {}, {}\n{}",
                           device->info().name, bandwidth * 1e-12, map.n_sequences, options.tokens, options.dim,
                           options.d_state, options.dtype, table));
}

}  // namespace

void register_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "measure on a GPU");
  bench->require_subcommand(1);
  add_bench_map(*bench);
  CLI::App* ops = bench->add_subcommand("ops", "the operators on one packed row: medians beside the memory limit");
  const auto options = std::make_shared<Options>();
  ops->add_option("--tokens", options->tokens, "tokens of the row")->capture_default_str();
  ops->add_option("--dim", options->dim, "channels")->capture_default_str();
  ops->add_option("--d-state", options->d_state, "states of a channel")->capture_default_str();
  ops->add_option("--conv-width", options->conv_width, "taps")->capture_default_str();
  ops->add_option("--dtype", options->dtype, "fp32, fp16 or bf16")->capture_default_str();
  ops->add_option("--repeats", options->repeats, "measurements, of which the median counts")->capture_default_str();
  ops->add_option("--seed", options->seed, "of lengths and contents")->capture_default_str();
  ops->add_option("--only", options->only, "operators to measure (all)");
  ops->add_option("--set", options->set, "Config field key=value, for every operator measured");
  ops->add_flag("--json", options->json, "print JSON");
  ops->callback([options] { bench_ops(*options); });
}

}  // namespace packjit
