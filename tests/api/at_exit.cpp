// K38: handles in static objects of a program and of a library it links, destroyed as the process ends, one with a
// preparation under way. The same source is both.
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <vector>

#include "packjit/packjit.hpp"

namespace {

struct Layer {
  Layer() {
    auto opened = packjit::Device::host();
    if (!opened) return;
    device.emplace(opened.take());
    auto made = packjit::Conv1dPack::create(*device, {.dtype = packjit::Dtype::fp32, .bias = false, .silu = false});
    if (made) conv.emplace(made.take());
    auto rows = packjit::SequenceMap::from_host(*device, packjit::Form::rows, {}, {.batch = 1, .seqlen = 4});
    if (rows) map.emplace(rows.take());
  }
  bool run() {
    std::vector<float> x = {1, 2, 3, 4}, weight = {0, 0, 1, 1}, out(4);
    if (!device || !conv || !map) return false;
    auto started = conv->prepare_async({.batch = 1, .seqlen = 64, .dim = 2, .max_sequences = 1, .max_seqlen = 64});
    if (!started) return false;
    preparation.emplace(started.take());
    const packjit::Status done = conv->forward({.x = packjit::Tensor(x.data(), packjit::Dtype::fp32, {1, 4, 1}),
                                                .weight = packjit::Tensor(weight.data(), packjit::Dtype::fp32, {1, 4}),
                                                .out = packjit::Tensor(out.data(), packjit::Dtype::fp32, {1, 4, 1})},
                                               *map);
    return done.ok() && out == std::vector<float>{1, 3, 5, 7};
  }
  ~Layer() {
    // A failure at a time when the thread's own objects are gone.
    if (conv && conv->prepare({}).code() != packjit::Code::bad_argument) std::_Exit(1);
  }
  std::optional<packjit::Device> device;  // goes last
  std::optional<packjit::Conv1dPack> conv;
  std::optional<packjit::SequenceMap> map;
  std::optional<packjit::Preparation> preparation;
};
Layer layer;

}  // namespace

#ifdef PACKJIT_TEST_LIBRARY
__attribute__((visibility("default"))) bool run_in_library() { return layer.run(); }
#else
bool run_in_library();
int main() {
  const bool ran = layer.run() && run_in_library();
  std::printf("%s\n", ran ? "ran" : "failed");
  return ran ? 0 : 1;
}
#endif
