#include "tests/faults/fault_test.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "generator/ssm_pack.hpp"
#include "runtime/errors.hpp"
#include "runtime/operator_call.hpp"

namespace packjit::checking {

void KnownFaults::SetUp() {
  static std::map<std::string, std::shared_ptr<Device>> devices;  // one a process: compiled kernels are shared
  std::shared_ptr<Device>& device = devices[GetParam()];
  if (!device) {
    try {
      device = open_device(GetParam());
    } catch (const EnvironmentError& error) {
      if (GetParam() == "host") throw;
      GTEST_SKIP() << error.what();
    }
  }
  device_ = device;
}

Case KnownFaults::small(Operator op, const std::vector<std::vector<std::int64_t>>& rows, Dtype dtype) {
  Case c;
  c.name = "fault";
  c.op = op;
  c.dtype = dtype;
  c.dim = 4;
  for (const auto& row : rows) c.rows.push_back(row_of(row));
  return c;
}

Case KnownFaults::with_states(Case c) {
  c.initial_states = c.final_states = true;
  return c;
}

void KnownFaults::expect_oracle(const Case& c) {
  const CaseRun run = first_run(device(), c);
  expect_pass(check_against_oracle(run, compute_reference(c, run.inputs)));
}

void KnownFaults::expect_oracle_and_padded(const Case& c) {
  const CaseRun run = first_run(device(), c);
  const Reference reference = compute_reference(c, run.inputs);
  expect_pass(check_against_oracle(run, reference));
  expect_pass(check_against_padded(device(), run, reference.reduction));
}

void expect_pass(const std::vector<Result>& results) {
  EXPECT_FALSE(results.empty());
  for (const Result& result : results) EXPECT_TRUE(result.pass()) << describe(result);
}

HostTensor fp32_tensor(std::vector<std::int64_t> shape, const std::vector<double>& values) {
  return HostTensor::from_double(ElementType::fp32, std::move(shape), values);
}

std::vector<double> repeated(double value, std::int64_t count) {
  return std::vector<double>(static_cast<std::size_t>(count), value);
}

namespace {

Sizes sizes_of(const Case& c) {
  Sizes sizes;
  sizes.batch = c.batch();
  sizes.seqlen = c.seqlen();
  sizes.dim = c.dim;
  sizes.groups = c.groups;
  sizes.d_state = c.d_state;
  sizes.conv_width = c.conv_width;
  sizes.history = c.conv_width - 1;
  sizes.n_sequences = static_cast<std::int64_t>(sequences_of(c).size());
  if (is_scan(c.op)) sizes.n_checkpoints = ssm_checkpoints(sizes);
  return sizes;
}

/// Calls visit(element offset) for every element, last dimension fastest.
template <typename Visit>
void visit_elements(const std::vector<std::int64_t>& size, const std::vector<std::int64_t>& stride,
                    const Visit& visit) {
  std::vector<std::int64_t> index(size.size(), 0);
  if (std::ranges::find(size, 0) != size.end()) return;
  while (true) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < size.size(); ++d) offset += size[d] > 1 ? index[d] * stride[d] : 0;
    visit(offset);
    std::size_t d = size.size();
    while (d > 0 && ++index[d - 1] == size[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

constexpr std::int64_t kSmallBuffer = 1 << 24;  ///< bytes; larger ones are written element by element

}  // namespace

/// Address space for a tensor with huge strides on the host: only the pages that are touched take memory, while a
/// Buffer would be filled with poison from end to end.
struct SparseMemory {
  explicit SparseMemory(std::size_t size) : bytes(size) {
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    data = static_cast<char*>(pages);
  }
  ~SparseMemory() { munmap(data, bytes); }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  std::size_t bytes;
  char* data = nullptr;
};

/// A tensor in a buffer of its own.
struct StridedCall::Stored {
  Stored(Device& on, ElementType type, std::vector<std::int64_t> size, const Place& place) : device(on) {
    view.type = type;
    view.size = std::move(size);
    view.stride = place.stride;
    if (view.stride.empty()) {
      view.stride.assign(view.size.size(), 1);
      for (std::size_t d = view.size.size(); d-- > 1;) view.stride[d - 1] = view.stride[d] * view.size[d];
    }
    std::int64_t lowest = 0, highest = 0;
    visit_elements(view.size, view.stride, [&](std::int64_t offset) {
      lowest = std::min(lowest, offset);
      highest = std::max(highest, offset);
    });
    first = place.offset - lowest;
    width = static_cast<std::int64_t>(size_of(type));
    bytes = static_cast<std::size_t>((first + highest + 1) * width);
    if (is_small() || device.info().kind != "host") {
      buffer = Buffer(device, bytes);
      memory = static_cast<char*>(buffer.data());
    } else {
      sparse = std::make_unique<SparseMemory>(bytes);
      memory = sparse->data;
    }
    view.data = memory + first * width;
    if (is_small()) device.fill(memory, 0xff, bytes);  // NaN in every dtype
  }
  [[nodiscard]] bool is_small() const { return static_cast<std::int64_t>(bytes) <= kSmallBuffer; }
  /// One element of a large buffer.
  void write_element(char* to, const std::byte* from) {
    sparse ? static_cast<void>(std::memcpy(to, from, static_cast<std::size_t>(width)))
           : device.write(to, from, static_cast<std::size_t>(width));
  }
  void read_element(std::byte* to, const char* from) const {
    sparse ? static_cast<void>(std::memcpy(to, from, static_cast<std::size_t>(width)))
           : device.read(to, from, static_cast<std::size_t>(width));
  }

  void write(const HostTensor& from) {
    const std::byte* next = from.bytes.data();
    std::vector<std::byte> image(is_small() ? bytes : 0, std::byte{0xff});
    visit_elements(view.size, view.stride, [&](std::int64_t offset) {
      const std::int64_t at = (first + offset) * width;
      if (is_small()) {
        std::memcpy(image.data() + at, next, static_cast<std::size_t>(width));
      } else {
        write_element(memory + at, next);
      }
      next += width;
    });
    if (is_small()) device.write(memory, image.data(), image.size());
  }
  [[nodiscard]] HostTensor read() const {
    HostTensor to = HostTensor::zeros(view.type, view.size);
    std::byte* next = to.bytes.data();
    std::vector<std::byte> image(is_small() ? bytes : 0);
    if (is_small()) device.read(image.data(), memory, image.size());
    visit_elements(view.size, view.stride, [&](std::int64_t offset) {
      const std::int64_t at = (first + offset) * width;
      if (is_small()) {
        std::memcpy(next, image.data() + at, static_cast<std::size_t>(width));
      } else {
        read_element(next, memory + at);
      }
      next += width;
    });
    return to;
  }

  Device& device;
  TensorView view;
  Buffer buffer;
  std::unique_ptr<SparseMemory> sparse;
  char* memory = nullptr;
  std::size_t bytes = 0;
  std::int64_t first = 0, width = 0;
};

StridedCall::StridedCall(Device& device, const Case& check_case) : device_(device), case_(check_case) {}

void StridedCall::place(const std::string& tensor, std::vector<std::int64_t> stride, std::int64_t offset) {
  places_[tensor] = {std::move(stride), offset};
}

HostTensors StridedCall::run(const HostTensors& inputs) {
  Spec spec = spec_of(case_);
  Config config = config_of(case_, device_.info().arch);
  const Sizes sizes = sizes_of(case_);
  std::map<std::string, Stored, std::less<>> stored;
  TensorViews views;
  for (const TensorRule& rule : tensor_rules(spec)) {
    if (!rule.field.empty() && spec.values[rule.field] == 0) continue;
    const std::string name(rule.name);
    std::vector<std::int64_t> shape;
    for (const std::string_view symbol : shape_symbols(rule.shape)) shape.push_back(sizes[symbol]);
    const ElementType type = element_type(spec, rule);
    auto& tensor = stored.try_emplace(name, device_, type, shape, places_[name]).first->second;
    if (!rule.output) tensor.write(inputs.at(name));
    views[name] = tensor.view;
  }
  specialise(spec, config, views);
  const MappedSequences sequences(device_, map_of(case_));
  Buffer workspace;
  run_operator(device_, spec, config, views, sequences, workspace);
  device_.synchronize();
  device_.check_guards();
  HostTensors outputs;
  for (const TensorRule& rule : tensor_rules(case_.op)) {
    const auto found = stored.find(rule.name);
    if (rule.output && found != stored.end()) outputs[found->first] = found->second.read();
  }
  return outputs;
}

}  // namespace packjit::checking
