#include "cli/bench_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "checking/random.hpp"
#include "cli/date.hpp"
#include "cli/spec_options.hpp"
#include "cli/terminal.hpp"
#include "database/record_json.hpp"
#include "generator/shared_fields.hpp"
#include "packing/packing.hpp"
#include "runtime/cuda_device.hpp"
#include "runtime/device_sequence_map.hpp"
#include "tuning/measure.hpp"

namespace packjit {
namespace {

using Form = Boundaries::Form;

struct MapOptions {
  std::int64_t rows = 1;
  std::int64_t tokens = 32768;
  std::int64_t shortest = 57, longest = 1223;
  std::int64_t dim = 4096;
  int repeats = 30;
  std::uint64_t seed = 1;
  bool json = false;
};

/// Rows of sequences without padding, so that every form can say them. The offsets of all of them.
std::vector<std::int64_t> random_offsets(const MapOptions& options) {
  checking::RandomStream random(options.seed, "bench map");
  std::vector<std::int64_t> offsets = {0};
  for (std::int64_t row = 1; row <= options.rows; ++row) {
    const std::int64_t end = row * options.tokens;
    while (offsets.back() < end) {
      offsets.push_back(std::min(offsets.back() + random.integer(options.shortest, options.longest), end));
    }
  }
  return offsets;
}

HostTensor boundary_tensor(Form form, ElementType type, const std::vector<std::int64_t>& offsets,
                           const MapOptions& options) {
  std::vector<double> values;
  if (form == Form::cu_seqlens) {
    values.assign(offsets.begin(), offsets.end());
    return HostTensor::from_double(type, {static_cast<std::int64_t>(offsets.size())}, values);
  }
  constexpr std::int64_t kLabels = 32767;  // a label only has to differ from its neighbours
  const std::int64_t saturation = saturation_of(form, type);
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    for (std::int64_t t = offsets[i - 1]; t < offsets[i]; ++t) {
      const std::int64_t label = static_cast<std::int64_t>(i) % kLabels;
      const std::int64_t position = t - offsets[i - 1];
      const std::int64_t held = saturation > 0 ? std::min(position, saturation) : position;
      values.push_back(static_cast<double>(form == Form::seq_idx ? label : held));
    }
  }
  return HostTensor::from_double(type, {options.rows, options.tokens}, values);
}

constexpr int kCalls = 10;  // of one timed repeat

nlohmann::json bench_form(Instruments& with, Form form, ElementType type, const std::vector<std::int64_t>& offsets,
                          const MapLimits& limits, const MapOptions& options) {
  CudaDevice& device = with.device;
  DeviceSequenceMap map(device, form, type, limits);
  Buffer memory;
  TensorView view;
  if (form != Form::rows) {
    const HostTensor tensor = boundary_tensor(form, type, offsets, options);
    memory = Buffer(device, tensor.bytes.size());
    device.write(memory.data(), tensor.bytes.data(), tensor.bytes.size());
    view = {memory.data(), type, tensor.shape,
            tensor.shape.size() == 1 ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{options.tokens, 1}};
  }
  const auto work = [&] { map.build(view); };
  const double launched = measure(with, kCalls, work).median_ms;
  map.check();
  const auto graph = device.capture(work);
  const double replayed = measure(with, kCalls, [&] { device.launch(*graph); }).median_ms;
  map.check();
  return {{"form", name_of(form)},
          {"index", form == Form::rows ? "" : name_of(type)},
          {"boundary_bytes", memory.size()},
          {"median_ms", launched},
          {"graph_median_ms", replayed}};
}

/// bf16, without states. The values of the tensors do not matter to what the memory does.
nlohmann::json bench_storage(Instruments& with, Operator op, MapStorage storage, DeviceSequenceMap& map,
                             const MapOptions& options) {
  CudaDevice& device = with.device;
  Spec spec(op);
  spec.values.set("map", static_cast<int>(storage));
  Sizes sizes;
  sizes.batch = options.rows;
  sizes.seqlen = options.tokens;
  sizes.dim = options.dim;
  sizes.conv_width = spec.values["conv_width"];
  sizes.history = sizes.conv_width - 1;
  std::vector<Buffer> buffers;
  TensorViews views;
  for (const TensorRule& rule : tensor_rules(op)) {
    if (!rule.field.empty() && spec.values[rule.field] == 0) continue;
    TensorView view;
    view.type = rule.always_fp32 ? ElementType::fp32 : ElementType::bf16;
    for (const std::string_view symbol : shape_symbols(rule.shape)) view.size.push_back(sizes[symbol]);
    view.stride.assign(view.size.size(), 1);
    for (std::size_t i = view.size.size(); i-- > 1;) view.stride[i - 1] = view.stride[i] * view.size[i];
    buffers.emplace_back(device, static_cast<std::size_t>(count_of(view.size)) * size_of(view.type));
    view.data = buffers.back().data();
    device.fill(view.data, 0x3C, buffers.back().size());
    views.emplace(rule.name, view);
  }
  Config config = builtin_config(spec, device.info().arch,
                                 Workload{options.rows * options.tokens, map.sequences().n_sequences, options.dim});
  specialise(spec, config, views);
  Buffer workspace;
  const Times times =
      measure(with, kCalls, [&] { run_operator(device, spec, config, views, map.sequences(), workspace); });
  const MappedSequences& stored = map.sequences();
  return {{"operator", name_of(op)},
          {"map", kMapLabels[static_cast<std::size_t>(storage)]},
          {"map_bytes", stored.run_index.size() + stored.slot.size()},
          {"median_ms", times.median_ms}};
}

void bench_map(const MapOptions& options, const std::string& command) {
  if (options.rows < 1 || options.tokens < 1 || options.dim < 1 || options.repeats < 1 || options.shortest < 1 ||
      options.longest < options.shortest) {
    throw std::invalid_argument(fmt::format(
        "bench map: rows {}, tokens {}, dim {} and repeats {} must all be at least 1, and lengths rise from {} to {}",
        options.rows, options.tokens, options.dim, options.repeats, options.shortest, options.longest));
  }
  if (options.rows > kMaximumLength / options.tokens || options.dim > kMaximumLength) {
    throw std::invalid_argument(
        fmt::format("bench map: all rows together have at most {} tokens, and dim is at most as large; found rows {}, "
                    "tokens {}, dim {}",
                    kMaximumLength, options.rows, options.tokens, options.dim));
  }
  const auto device = CudaDevice::open();
  Instruments with(*device, CacheState::warm, options.repeats);
  const std::vector<std::int64_t> offsets = random_offsets(options);
  const auto sequences = static_cast<std::int64_t>(offsets.size()) - 1;
  const MapLimits limits{options.rows, options.tokens, sequences, options.tokens};
  nlohmann::json report = {
      {"date", today()},          {"command", command},     {"gpu", device->info().name}, {"rows", options.rows},
      {"tokens", options.tokens}, {"sequences", sequences}, {"repeats", options.repeats}, {"dim", options.dim}};
  std::string table = fmt::format("{}: {} sequences in {} rows of {} tokens\n\n{:<17} {:<7} {:>10} {:>10} {:>10}\n",
                                  device->info().name, sequences, options.rows, options.tokens, "form", "index",
                                  "bytes", "build ms", "graph ms");
  const auto add_form = [&](Form form, ElementType type) {
    const nlohmann::json row = bench_form(with, form, type, offsets, limits, options);
    table += fmt::format("{:<17} {:<7} {:>10} {:>10.4f} {:>10.4f}\n", row["form"].get<std::string>(),
                         row["index"].get<std::string>(), row["boundary_bytes"].get<std::int64_t>(),
                         row["median_ms"].get<double>(), row["graph_median_ms"].get<double>());
    report["builds"].push_back(row);
  };
  for (const Form form : {Form::position_indices, Form::seq_idx}) {
    for (const ElementType type : {ElementType::int16, ElementType::uint16, ElementType::int32, ElementType::int64}) {
      add_form(form, type);
    }
  }
  for (const ElementType type : {ElementType::int32, ElementType::int64}) add_form(Form::cu_seqlens, type);
  add_form(Form::rows, ElementType::int32);

  table += fmt::format("\n{:<17} {:<12} {:>10} {:>10}\n", "operator", "map", "bytes", "median ms");
  const HostTensor tensor = boundary_tensor(Form::cu_seqlens, ElementType::int64, offsets, options);
  const Buffer memory(*device, tensor.bytes.size());
  device->write(memory.data(), tensor.bytes.data(), tensor.bytes.size());
  for (const Operator op : {Operator::conv1d_pack_fwd, Operator::conv1d_pack_bwd}) {
    for (const MapStorage storage :
         {MapStorage::positions, MapStorage::positions16, MapStorage::bits, MapStorage::offsets}) {
      DeviceSequenceMap map(*device, Form::cu_seqlens, ElementType::int64, limits, storage);
      map.build({memory.data(), ElementType::int64, tensor.shape, {1}});
      const nlohmann::json row = bench_storage(with, op, storage, map, options);
      table += fmt::format("{:<17} {:<12} {:>10} {:>10.4f}\n", row["operator"].get<std::string>(),
                           row["map"].get<std::string>(), row["map_bytes"].get<std::int64_t>(),
                           row["median_ms"].get<double>());
      report["storages"].push_back(row);
    }
  }
  device->check_guards();
  print_result(options.json ? dump_text(report, 2) + "\n" : table);
}

}  // namespace

void add_bench_map(CLI::App& bench) {
  CLI::App* map = bench.add_subcommand("map", "building a SequenceMap from each form of boundaries, and each storage");
  const auto options = std::make_shared<MapOptions>();
  map->add_option("--rows", options->rows, "rows")->capture_default_str();
  map->add_option("--tokens", options->tokens, "tokens of a row")->capture_default_str();
  map->add_option("--shortest", options->shortest, "tokens of the shortest sequence")->capture_default_str();
  map->add_option("--longest", options->longest, "tokens of the longest sequence")->capture_default_str();
  map->add_option("--dim", options->dim, "channels of the convolutions")->capture_default_str();
  map->add_option("--repeats", options->repeats, "measurements, of which the median counts")->capture_default_str();
  map->add_option("--seed", options->seed, "of the lengths")->capture_default_str();
  map->add_flag("--json", options->json, "print JSON");
  map->callback([options, map] { bench_map(*options, "packjit bench map" + given_options(*map, {})); });
}

}  // namespace packjit
