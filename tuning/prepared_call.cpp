#include "tuning/prepared_call.hpp"

#include <map>

#include "generator/ssm_pack.hpp"
#include "runtime/config_choice.hpp"

namespace packjit {
namespace {

std::shared_ptr<const MappedSequences> map_of(Device& device, const BatchShape& shape) {
  const SequenceMap map = build_sequence_map(boundaries_of(shape), shape.batch(), shape.seqlen);
  return std::make_shared<const MappedSequences>(device, map);
}

}  // namespace

Sizes batch_sizes(const OperatorChoices& choices, const BatchShape& shape) {
  Sizes sizes;
  sizes.batch = shape.batch();
  sizes.seqlen = shape.seqlen;
  sizes.dim = choices.dim;
  sizes.groups = 1;
  sizes.d_state = choices.d_state;
  sizes.conv_width = choices.conv_width;
  sizes.history = choices.conv_width - 1;
  sizes.n_sequences = shape.sequences();
  sizes.n_checkpoints = ssm_checkpoints(sizes);
  return sizes;
}

Config config_for(const CallSetting& setting, const Spec& spec, const BatchShape& shape) {
  const Workload work{shape.tokens(), shape.sequences(), setting.choices.dim, shape.longest()};
  return with_settings(choose_config(spec, setting.device.info(), work).config, setting.settings);
}

Work work_of(const Spec& spec, const Sizes& sizes, std::int64_t tokens) {
  const double elements = static_cast<double>(tokens) * static_cast<double>(sizes.dim);
  return {static_cast<double>(tensor_bytes(spec, sizes)), exponentials_per_element(spec) * elements,
          instructions_per_element(spec) * elements};
}

PreparedCall whole_call(const CallSetting& setting, const Spec& spec, const BatchShape& shape,
                        const BatchTensors& tensors) {
  PreparedCall call{spec,
                    config_for(setting, spec, shape),
                    {},
                    map_of(setting.device, shape),
                    batch_sizes(setting.choices, shape),
                    shape.real_tokens()};
  for (int set = 0; set < tensors.sets(); ++set) call.tensors.push_back(tensors.views(spec, set));
  specialise(call.spec, call.config, call.tensors.front());
  return call;
}

std::vector<PreparedCall> calls_of_sequences(const CallSetting& setting, const Spec& spec, const BatchShape& shape,
                                             const BatchTensors& tensors) {
  std::map<std::int64_t, std::shared_ptr<const MappedSequences>> maps;  // by length
  std::vector<TensorViews> whole;
  whole.reserve(static_cast<std::size_t>(tensors.sets()));
  for (int set = 0; set < tensors.sets(); ++set) whole.push_back(tensors.views(spec, set));
  std::vector<PreparedCall> calls;
  for (const SequencePlace& place : sequences_of(shape)) {
    const BatchShape alone{"one", place.length, {{place.length}}};
    std::shared_ptr<const MappedSequences>& map = maps[place.length];
    if (map == nullptr) map = map_of(setting.device, alone);
    PreparedCall call{spec, config_for(setting, spec, alone),    {},
                      map,  batch_sizes(setting.choices, alone), place.length};
    for (const TensorViews& views : whole) call.tensors.push_back(sequence_views(views, spec.op, place));
    specialise(call.spec, call.config, call.tensors.front());
    calls.push_back(std::move(call));
  }
  return calls;
}

void run_calls(Device& device, std::span<const PreparedCall> calls, std::size_t set, Buffer& workspace) {
  for (const PreparedCall& call : calls) {
    run_operator(device, call.spec, call.config, call.tensors[set], *call.sequences, workspace);
  }
}

}  // namespace packjit
