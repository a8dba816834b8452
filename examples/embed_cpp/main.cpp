// packjit inside a program: one call, then a training loop on two threads, each with a stream and, on a GPU, CUDA
// graphs.
#include <packjit/packjit.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "machine.hpp"

namespace {

using packjit::Dtype;
using packjit::Tensor;

int failed(const packjit::Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}

/// Ends the program where a call failed.
void check(const packjit::Status& status) {
  if (!status) std::exit(failed(status));
}

constexpr int kTokens = 64;
constexpr int kWidth = 4;
const std::array<float, kWidth> kWanted = {0.1F, 0.2F, 0.3F, 0.4F};

/// One batch: cut anew in every step into sequences of `length` tokens, with what the wanted weights make of them.
struct Batch {
  explicit Batch(int length, unsigned& random) : x(kTokens), target(kTokens), positions(kTokens) {
    for (int t = 0; t < kTokens; ++t) {
      const auto i = static_cast<std::size_t>(t);
      random = random * 1664525U + 1013904223U;
      x[i] = static_cast<float>(random >> 8U) / static_cast<float>(1U << 23U) - 1.0F;
      positions[i] = t % length;
      for (int k = 0; k <= std::min(positions[i], kWidth - 1); ++k) {
        target[i] += kWanted.at(static_cast<std::size_t>(kWidth - 1 - k)) * x[i - static_cast<std::size_t>(k)];
      }
    }
  }
  std::vector<float> x, target;
  std::vector<int> positions;
};

/// Learns the wanted weights by gradient descent. Boundaries reach the device like any other data, and its map is built
/// there: nothing waits, so that a step can be a graph.
std::vector<float> train(const packjit::Device& device, const packjit::Conv1dPack& conv, const Machine& machine,
                         unsigned seed) {
  machine.make_current();
  void* stream = machine.make_stream();
  const packjit::Shape shape{.batch = 1, .seqlen = kTokens, .dim = 1, .max_sequences = kTokens, .max_seqlen = kTokens};
  auto preparation = conv.prepare_async(shape, packjit::Directions::both, stream);
  check(preparation.status());

  Values<float> x(machine, kTokens), out(machine, kTokens), dout(machine, kTokens), dx(machine, kTokens);
  Values<float> weight(machine, stream, std::vector<float>(kWidth)), dweight(machine, kWidth);
  Values<int> positions(machine, kTokens);
  const Tensor x_view(x.data(), Dtype::fp32, {1, kTokens, 1}), weight_view(weight.data(), Dtype::fp32, {1, kWidth});
  auto map =
      packjit::SequenceMap::on_device(device, packjit::Form::position_indices, Dtype::int32,
                                      {.batch = 1, .seqlen = kTokens, .max_sequences = kTokens, .max_seqlen = kTokens},
                                      packjit::MapStorage::positions, stream);
  check(map.status());
  check(preparation->wait());

  const std::function<void()> forward = machine.record(stream, [&] {
    check(map->build(Tensor(positions.data(), Dtype::int32, {1, kTokens}), stream));
    check(conv.forward({.x = x_view, .weight = weight_view, .out = Tensor(out.data(), Dtype::fp32, {1, kTokens, 1})},
                       *map, stream));
  });
  const std::function<void()> backward = machine.record(stream, [&] {
    check(conv.backward({.x = x_view,
                         .weight = weight_view,
                         .dout = Tensor(dout.data(), Dtype::fp32, {1, kTokens, 1}),
                         .dx = Tensor(dx.data(), Dtype::fp32, {1, kTokens, 1}),
                         .dweight = Tensor(dweight.data(), Dtype::fp32, {1, kWidth})},
                        *map, stream));
  });

  std::vector<float> learned(kWidth);
  for (int step = 0; step < 40; ++step) {
    const Batch batch(8 + step % 5, seed);
    x.set(stream, batch.x);
    positions.set(stream, batch.positions);
    weight.set(stream, learned);
    forward();
    std::vector<float> error = out.get(stream);
    for (std::size_t t = 0; t < error.size(); ++t) error[t] -= batch.target[t];
    dout.set(stream, error);
    backward();
    const std::vector<float> gradient = dweight.get(stream);
    for (std::size_t k = 0; k < learned.size(); ++k) learned[k] -= 0.03F * gradient[k];
  }
  check(map->check(stream));
  return learned;
}

int train_on_two_threads(const packjit::Device& device, const Machine& machine) {
  auto conv = packjit::Conv1dPack::create(device, {.dtype = Dtype::fp32, .bias = false, .silu = false});
  if (!conv) return failed(conv.status());
  std::array<std::vector<float>, 2> learned;
  std::array<std::thread, 2> threads;
  for (unsigned i = 0; i < 2; ++i) {
    threads.at(i) = std::thread([&, i] { learned.at(i) = train(device, *conv, machine, i + 1); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& weights : learned) {
    for (const float weight : weights) std::printf("%.3f ", weight);  // 0.100 0.200 0.300 0.400
    std::printf("\n");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool on_host = argc > 1 && std::string(argv[1]) == "host";
  // A GPU where there is one, otherwise host execution, which checks kernels on the CPU and is not fast.
  auto device = on_host ? packjit::Device::host() : packjit::Device::automatic();
  if (!device) return failed(device.status());
  const Machine machine(!device->info()->is_host);  // yours: memory and streams of the device
  void* stream = machine.make_stream();

  // One row of 8 tokens, 1 channel. Four taps: each output is the sum of up to four tokens of its own sequence.
  Values<float> x(machine, stream, {1, 2, 3, 4, 5, 10, 20, 30}), weight(machine, stream, {1, 1, 1, 1}), out(machine, 8);
  auto conv = packjit::Conv1dPack::create(*device, {.dtype = Dtype::fp32, .bias = false, .silu = false});
  if (!conv) return failed(conv.status());

  // Sequences of 5 and 3 tokens: positions restart at 0 where one begins. One map a batch, for all layers.
  const std::array positions = {0, 1, 2, 3, 4, 0, 1, 2};
  const Tensor boundaries(positions.data(), Dtype::int32, {1, 8});
  auto map = packjit::SequenceMap::from_host(*device, packjit::Form::position_indices, boundaries,
                                             {.batch = 1, .seqlen = 8}, packjit::MapStorage::positions, stream);
  if (!map) return failed(map.status());

  const packjit::Status done = conv->forward({.x = Tensor(x.data(), Dtype::fp32, {1, 8, 1}),
                                              .weight = Tensor(weight.data(), Dtype::fp32, {1, 4}),
                                              .out = Tensor(out.data(), Dtype::fp32, {1, 8, 1})},
                                             *map, stream);
  if (!done) return failed(done);
  for (const float value : out.get(stream)) std::printf("%g ", value);
  std::printf("\n");  // 1 3 6 10 14 10 30 60

  return train_on_two_threads(*device, machine);
}
