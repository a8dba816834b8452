// The C interface: operators and their preparation.
#include <algorithm>
#include <chrono>
#include <vector>

#include "api/c_struct.hpp"
#include "api/handles.hpp"
#include "generator/ssm_pack.hpp"
#include "runtime/errors.hpp"
#include "runtime/fork_watch.hpp"

using packjit::Operator;
using packjit::api::guarded;
using packjit::api::Outcome;
using packjit::api::read_struct;
using packjit::api::require;
using packjit::api::write_struct;

namespace {

using packjit::api::Lane;

void* workspace_of(Lane& lane, std::size_t bytes, const packjit_workspace* given) {
  if (given == nullptr) return lane.workspace(bytes);
  const packjit_workspace& workspace = read_struct(given, "packjit_workspace");
  if (workspace.bytes < bytes || (workspace.data == nullptr && bytes > 0)) {
    throw std::invalid_argument(
        fmt::format("packjit_workspace: the call needs {} bytes, {} at {} were given; packjit_operator_workspace_bytes "
                    "says how much",
                    bytes, workspace.bytes, fmt::ptr(workspace.data)));
  }
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % packjit::api::kWorkspaceAlignment != 0) {
    throw std::invalid_argument(fmt::format("packjit_workspace: data is {}, expected a multiple of {} bytes",
                                            fmt::ptr(workspace.data), packjit::api::kWorkspaceAlignment));
  }
  return workspace.data;
}

/// One of the four calls: `Tensors` is the C struct of `kOp`.
template <Operator kOp, class Tensors>
packjit_status run(packjit_operator* op, void* stream, const packjit_map* map, const Tensors* tensors,
                   const packjit_workspace* workspace, const char* function, const char* struct_name) noexcept {
  return guarded([&] {
    require(op, function, "op");
    require(map, function, "map");
    if (op->op->is_scan() != packjit::is_scan(kOp)) {
      throw std::invalid_argument(fmt::format("{}: the operator was created as {}", function,
                                              op->op->is_scan() ? "PACKJIT_SSM_PACK" : "PACKJIT_CONV1D_PACK"));
    }
    const auto* bytes = reinterpret_cast<const char*>(&read_struct(tensors, struct_name));
    const packjit_tensor* given[sizeof(Tensors) / sizeof(void*)];
    std::size_t count = 0;
    for (const std::size_t offset : packjit::api::tensor_offsets(kOp)) {
      std::memcpy(static_cast<void*>(&given[count++]), bytes + offset, sizeof(void*));
    }
    op->op->run(packjit::is_backward(kOp), stream, *map->map, std::span(given, count),
                [workspace](Lane& lane, std::size_t size) { return workspace_of(lane, size, workspace); });
  });
}

bool is_done(const packjit_task& task) {
  return task.outcome.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}
/// Another process is doing it, from which this one was forked.
bool is_lost(const packjit_task& task) { return task.forks != packjit::forks_seen(); }

}  // namespace

extern "C" {

packjit_status packjit_operator_create(packjit_device* device, const packjit_operator_options* options,
                                       packjit_operator** op) {
  return guarded([&] {
    require(device, "packjit_operator_create", "device");
    require(op, "packjit_operator_create", "op");
    *op = nullptr;
    *op = new packjit_operator{*device, std::make_shared<packjit::api::PackedOperator>(
                                            *device->backend, read_struct(options, "packjit_operator_options"))};
  });
}

void packjit_operator_release(packjit_operator* op) { delete op; }

packjit_status packjit_operator_prepare(packjit_operator* op, void* stream, int32_t directions,
                                        const packjit_shape* shape) {
  return guarded([&] {
    require(op, "packjit_operator_prepare", "op");
    op->op->prepare(stream, directions, read_struct(shape, "packjit_shape"));
  });
}

packjit_status packjit_operator_prepare_start(packjit_operator* op, void* stream, int32_t directions,
                                              const packjit_shape* shape, packjit_task** task) {
  return guarded([&] {
    require(op, "packjit_operator_prepare_start", "op");
    require(task, "packjit_operator_prepare_start", "task");
    *task = nullptr;
    const packjit_shape wanted = read_struct(shape, "packjit_shape");
    auto promise = std::make_shared<std::promise<Outcome>>();
    auto made = std::make_unique<packjit_task>(packjit_task{promise->get_future().share(), packjit::forks_seen()});
    void* handed = op->device.backend->to_hand_on();
    op->device.workers.add([op = op->op, promise, stream, directions, wanted, handed] {
      promise->set_value(packjit::api::outcome_of([&] { op->prepare(stream, directions, wanted, handed); }));
    });
    *task = made.release();
  });
}

int32_t packjit_task_ready(const packjit_task* task) {
  return task == nullptr || is_done(*task) || is_lost(*task) ? 1 : 0;
}

packjit_status packjit_task_wait(packjit_task* task) {
  packjit_status status = PACKJIT_OK;
  const packjit_status failed = guarded([&] {
    require(task, "packjit_task_wait", "task");
    if (!is_done(*task) && is_lost(*task)) {
      throw packjit::EnvironmentError(
          "packjit_task_wait: the preparation began before this process was forked, and is done in the other one; "
          "start it again here");
    }
    status = packjit::api::report(task->outcome.get());
  });
  return failed != PACKJIT_OK ? failed : status;
}

void packjit_task_release(packjit_task* task) { delete task; }

packjit_status packjit_operator_workspace_bytes(packjit_operator* op, int32_t direction, const packjit_shape* shape,
                                                size_t* bytes) {
  return guarded([&] {
    require(op, "packjit_operator_workspace_bytes", "op");
    require(bytes, "packjit_operator_workspace_bytes", "bytes");
    const bool backward = packjit::api::is_backward_direction(direction);
    *bytes = static_cast<std::size_t>(op->op->workspace_bytes(backward, read_struct(shape, "packjit_shape")));
  });
}

packjit_status packjit_operator_describe(packjit_operator* op, int32_t direction, const packjit_shape* shape,
                                         const char* name, packjit_tensor* tensor) {
  return guarded([&] {
    require(op, "packjit_operator_describe", "op");
    require(name, "packjit_operator_describe", "name");
    const bool backward = packjit::api::is_backward_direction(direction);
    write_struct(tensor, op->op->describe(backward, read_struct(shape, "packjit_shape"), name), "packjit_tensor");
  });
}

int32_t packjit_checkpoint_interval(int32_t d_state) {
  const auto field = std::ranges::find(packjit::spec_fields(Operator::ssm_pack_fwd), "d_state", &packjit::Field::name);
  return d_state < field->minimum || d_state > field->maximum ? 0 : packjit::checkpoint_interval(d_state);
}

packjit_status packjit_conv1d_forward(packjit_operator* op, void* stream, const packjit_map* map,
                                      const packjit_conv1d_forward_tensors* tensors,
                                      const packjit_workspace* workspace) {
  return run<Operator::conv1d_pack_fwd>(op, stream, map, tensors, workspace, "packjit_conv1d_forward",
                                        "packjit_conv1d_forward_tensors");
}

packjit_status packjit_conv1d_backward(packjit_operator* op, void* stream, const packjit_map* map,
                                       const packjit_conv1d_backward_tensors* tensors,
                                       const packjit_workspace* workspace) {
  return run<Operator::conv1d_pack_bwd>(op, stream, map, tensors, workspace, "packjit_conv1d_backward",
                                        "packjit_conv1d_backward_tensors");
}

packjit_status packjit_ssm_forward(packjit_operator* op, void* stream, const packjit_map* map,
                                   const packjit_ssm_forward_tensors* tensors, const packjit_workspace* workspace) {
  return run<Operator::ssm_pack_fwd>(op, stream, map, tensors, workspace, "packjit_ssm_forward",
                                     "packjit_ssm_forward_tensors");
}

packjit_status packjit_ssm_backward(packjit_operator* op, void* stream, const packjit_map* map,
                                    const packjit_ssm_backward_tensors* tensors, const packjit_workspace* workspace) {
  return run<Operator::ssm_pack_bwd>(op, stream, map, tensors, workspace, "packjit_ssm_backward",
                                     "packjit_ssm_backward_tensors");
}

}  // extern "C"
