#include "tuning/capture.hpp"

#include <algorithm>
#include <utility>

#include "generator/ssm_simple.hpp"
#include "tuning/targets.hpp"

namespace packjit {

std::vector<TuningTarget> targets_of_capture(std::span<const CapturedShape> shapes) {
  struct Group {
    TuningTarget target;
    std::int64_t calls, most;  // of all shapes; of the one in `target`
  };
  std::vector<Group> groups;
  for (const CapturedShape& shape : shapes) {
    if (is_scan(shape.spec.op) && is_simple_scan(shape.spec)) continue;  // they have one Config
    const BatchShape batch{"captured", shape.seqlen, shape.rows};
    const Workload work = workload_of(batch, shape.dim);
    const TuningTarget target{shape.spec, bucket_of(shape.spec.op, work), work, batch};
    const auto group = std::ranges::find_if(groups, [&](const Group& known) {
      return known.target.spec == target.spec && known.target.bucket == target.bucket;
    });
    if (group == groups.end()) {
      groups.push_back({target, shape.calls, shape.calls});
      continue;
    }
    group->calls += shape.calls;
    if (shape.calls <= group->most) continue;
    group->target = target;
    group->most = shape.calls;
  }
  std::ranges::stable_sort(groups, std::ranges::greater{}, &Group::calls);
  std::vector<TuningTarget> targets;
  targets.reserve(groups.size());
  for (Group& group : groups) targets.push_back(std::move(group.target));
  return targets;
}

}  // namespace packjit
