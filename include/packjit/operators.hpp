#pragma once
// The operators. A part of packjit/packjit.hpp.

#include <string>

#include "packjit/sequence_map.hpp"

namespace packjit {
inline namespace v1 {

enum class Directions {
  forward = PACKJIT_FORWARD,
  backward = PACKJIT_BACKWARD,
  both = PACKJIT_FORWARD + PACKJIT_BACKWARD
};
enum class Layout {
  token_major = PACKJIT_TOKEN_MAJOR,
  channel_major = PACKJIT_CHANNEL_MAJOR,
  strided = PACKJIT_STRIDED
};

/// What calls will look like: kernels are made for tensors that begin at multiples of 16 bytes and are dense in the
/// layout. The limits are those of the maps that will come.
struct Shape {
  std::int64_t batch = 0, seqlen = 0, dim = 0;
  std::int64_t groups = 1;  ///< of B and C
  std::int64_t max_sequences = 0, max_seqlen = 0;
  Layout layout = Layout::token_major;
  bool caller_workspace = false;  ///< calls will bring their own, so that preparing takes none
};

/// A preparation on a worker thread of the library. One thread may use it at a time. Destroying it does not wait.
class Preparation {
 public:
  explicit Preparation(packjit_task* handle) : handle_(handle) {}
  [[nodiscard]] bool ready() const { return packjit_task_ready(handle_.get()) != 0; }
  /// Waits, and gives what prepare() would.
  Status wait() { return Status(packjit_task_wait(handle_.get())); }

 private:
  detail::Owned<packjit_task, packjit_task_release> handle_;
};

/// What both operators have. Any thread may use one, several at once, each with a stream of its own; layers with the
/// same options may share one. Movable, not copyable.
class PackedOperator {
 public:
  /// Generates, compiles and loads what calls of this shape need, and takes the library's workspace for `stream` where
  /// they bring none. Afterwards such calls can be captured and cost little.
  Status prepare(const Shape& shape, Directions directions = Directions::both, Stream stream = nullptr) const {
    const packjit_shape wanted = c_shape(shape);
    return Status(packjit_operator_prepare(handle_.get(), stream, static_cast<std::int32_t>(directions), &wanted));
  }
  /// The same on a worker thread.
  [[nodiscard]] Result<Preparation> prepare_async(const Shape& shape, Directions directions = Directions::both,
                                                  Stream stream = nullptr) const {
    const packjit_shape wanted = c_shape(shape);
    packjit_task* task = nullptr;
    const Status status(
        packjit_operator_prepare_start(handle_.get(), stream, static_cast<std::int32_t>(directions), &wanted, &task));
    if (!status) return status;
    return Preparation(task);
  }
  /// The scratch memory of such calls in bytes, at most.
  [[nodiscard]] Result<std::size_t> workspace_bytes(const Shape& shape, Directions direction) const {
    const packjit_shape wanted = c_shape(shape);
    std::size_t bytes = 0;
    const Status status(
        packjit_operator_workspace_bytes(handle_.get(), static_cast<std::int32_t>(direction), &wanted, &bytes));
    if (!status) return status;
    return bytes;
  }
  /// Shape and dtype of a tensor in such calls, by its name, without memory: how to make "checkpoints", say.
  [[nodiscard]] Result<Tensor> describe(const Shape& shape, Directions direction, const std::string& name) const {
    const packjit_shape wanted = c_shape(shape);
    Tensor result;
    const Status status(packjit_operator_describe(handle_.get(), static_cast<std::int32_t>(direction), &wanted,
                                                  name.c_str(), &result.tensor));
    if (!status) return status;
    return result;
  }

 protected:
  explicit PackedOperator(packjit_operator* handle) : handle_(handle) {}
  static packjit_shape c_shape(const Shape& shape) {
    return {sizeof(packjit_shape),
            shape.batch,
            shape.seqlen,
            shape.dim,
            shape.groups,
            shape.max_sequences,
            shape.max_seqlen,
            static_cast<std::int32_t>(shape.layout),
            shape.caller_workspace ? 1 : 0};
  }
  static std::int32_t on_off(bool on) { return on ? PACKJIT_ON : PACKJIT_OFF; }
  /// Calls run(operator, stream, map, tensors, workspace or null).
  template <typename Run, typename Tensors>
  Status call(Run run, const Tensors& tensors, const SequenceMap& map, Stream stream, Workspace workspace) const {
    const packjit_workspace given{sizeof(given), workspace.data, workspace.bytes};
    return Status(run(handle_.get(), stream, map.handle(), &tensors,
                      workspace.data == nullptr && workspace.bytes == 0 ? nullptr : &given));
  }
  detail::Owned<packjit_operator, packjit_operator_release> handle_;
};

/// conv1d_pack: y[t] = act(bias + sum over k of weight[W-1-k] * x[t-k]), where no tap leaves the token's sequence.
///
/// Calls check the tensors, prepare what is missing and launch on `stream` without waiting. Tensors are (batch, seqlen,
/// dim) unless another shape stands beside them; outputs are written completely, padding included. After a failure they
/// are unspecified. While the stream is captured, what would need preparing is refused with not_prepared_in_capture
/// before the stream is touched, and the capture goes on.
class Conv1dPack : public PackedOperator {
 public:
  struct Options {
    Dtype dtype = Dtype::bf16;
    int conv_width = 4;  ///< W, 1 to 16
    bool bias = true, silu = true;
    bool initial_states = false, final_states = false;
    MapStorage map_storage = MapStorage::positions;
    bool fp32_weights = false;  ///< weight and bias are fp32, whatever the dtype
  };
  /// Absent where the options have none.
  struct Forward {
    Tensor x = {};
    Tensor weight = {};          ///< (dim, W), with fp32_weights fp32
    Tensor bias = {};            ///< (dim), as weight
    Tensor initial_states = {};  ///< (n_sequences, dim, W - 1)
    Tensor out = {};
    Tensor final_states = {};  ///< as initial_states
  };
  struct Backward {
    Tensor x = {}, weight = {}, bias = {}, initial_states = {};
    Tensor dout = {}, dfinal_states = {};
    Tensor dx = {};
    Tensor dweight = {}, dbias = {};  ///< fp32
    Tensor dinitial_states = {};
  };

  [[nodiscard]] static Result<Conv1dPack> create(const Device& device, const Options& options) {
    packjit_operator_options c{};
    c.struct_size = sizeof(c);
    c.op = PACKJIT_CONV1D_PACK;
    c.dtype = static_cast<std::int32_t>(options.dtype);
    c.conv_width = options.conv_width;
    c.bias = on_off(options.bias);
    c.silu = on_off(options.silu);
    c.initial_states = on_off(options.initial_states);
    c.final_states = on_off(options.final_states);
    c.map_storage = static_cast<std::int32_t>(options.map_storage);
    c.fp32_weights = on_off(options.fp32_weights);
    packjit_operator* handle = nullptr;
    const Status status(packjit_operator_create(device.handle(), &c, &handle));
    if (!status) return status;
    return Conv1dPack(handle);
  }

  Status forward(const Forward& t, const SequenceMap& map, Stream stream = nullptr, Workspace workspace = {}) const {
    const packjit_conv1d_forward_tensors c{
        sizeof(c), t.x.get(), t.weight.get(), t.bias.get(), t.initial_states.get(), t.out.get(), t.final_states.get()};
    return call(packjit_conv1d_forward, c, map, stream, workspace);
  }
  Status backward(const Backward& t, const SequenceMap& map, Stream stream = nullptr, Workspace workspace = {}) const {
    const packjit_conv1d_backward_tensors c{sizeof(c),
                                            t.x.get(),
                                            t.weight.get(),
                                            t.bias.get(),
                                            t.initial_states.get(),
                                            t.dout.get(),
                                            t.dfinal_states.get(),
                                            t.dx.get(),
                                            t.dweight.get(),
                                            t.dbias.get(),
                                            t.dinitial_states.get()};
    return call(packjit_conv1d_backward, c, map, stream, workspace);
  }

 private:
  using PackedOperator::PackedOperator;
};

/// ssm_pack, the selective scan: h[t] = exp(dt*A) * h[t-1] + dt*B[t]*u[t], y[t] = C[t] * h[t] + D*u[t],
/// out = y * silu(z), with dt = softplus(delta + delta_bias); h begins anew in every sequence.
///
/// Calls behave as those of Conv1dPack.
class SsmPack : public PackedOperator {
 public:
  struct Options {
    Dtype dtype = Dtype::bf16;
    int d_state = 16;  ///< 1 to 512
    bool softplus = true, D = true, z = true, delta_bias = true;
    bool initial_states = false, final_states = false;
    bool checkpoints = false;  ///< the forward stores states for the backward
    /// Written for correctness, not for speed, and without checkpoints: B or C is the same for all tokens; A, B, C and
    /// states are complex numbers, and y sums 2 * Re(C * h).
    bool constant_B = false, constant_C = false, complex_A = false;
  };
  /// Absent where the options have none.
  struct Forward {
    Tensor u = {}, delta = {};
    Tensor A = {};  ///< (dim, d_state), fp32, or complex64
    /// (batch, seqlen, groups, d_state), with complex A 2 * d_state reals; constant: as A
    Tensor B = {}, C = {};
    Tensor D = {};  ///< (dim), fp32
    Tensor z = {};
    Tensor delta_bias = {};      ///< (dim), fp32
    Tensor initial_states = {};  ///< (n_sequences, dim, d_state), of A's dtype
    Tensor out = {};
    Tensor final_states = {};  ///< as initial_states
    Tensor checkpoints = {};   ///< describe() has its shape
  };
  /// Gradients have the shape of what they are the gradient of; those of A, D, delta_bias and states are fp32, or
  /// complex64 where those are.
  struct Backward {
    Tensor u = {}, delta = {}, A = {}, B = {}, C = {}, D = {}, z = {}, delta_bias = {}, initial_states = {};
    Tensor dout = {}, dfinal_states = {}, checkpoints = {};
    Tensor du = {}, ddelta = {}, dA = {}, dB = {}, dC = {}, dD = {}, dz = {}, ddelta_bias = {}, dinitial_states = {};
  };

  [[nodiscard]] static Result<SsmPack> create(const Device& device, const Options& options) {
    packjit_operator_options c{};
    c.struct_size = sizeof(c);
    c.op = PACKJIT_SSM_PACK;
    c.dtype = static_cast<std::int32_t>(options.dtype);
    c.d_state = options.d_state;
    c.softplus = on_off(options.softplus);
    c.D = on_off(options.D);
    c.z = on_off(options.z);
    c.delta_bias = on_off(options.delta_bias);
    c.initial_states = on_off(options.initial_states);
    c.final_states = on_off(options.final_states);
    c.checkpoints = on_off(options.checkpoints);
    c.constant_B = on_off(options.constant_B);
    c.constant_C = on_off(options.constant_C);
    c.complex_A = on_off(options.complex_A);
    packjit_operator* handle = nullptr;
    const Status status(packjit_operator_create(device.handle(), &c, &handle));
    if (!status) return status;
    return SsmPack(handle);
  }

  Status forward(const Forward& t, const SequenceMap& map, Stream stream = nullptr, Workspace workspace = {}) const {
    const packjit_ssm_forward_tensors c{sizeof(c),          t.u.get(),
                                        t.delta.get(),      t.A.get(),
                                        t.B.get(),          t.C.get(),
                                        t.D.get(),          t.z.get(),
                                        t.delta_bias.get(), t.initial_states.get(),
                                        t.out.get(),        t.final_states.get(),
                                        t.checkpoints.get()};
    return call(packjit_ssm_forward, c, map, stream, workspace);
  }
  Status backward(const Backward& t, const SequenceMap& map, Stream stream = nullptr, Workspace workspace = {}) const {
    packjit_ssm_backward_tensors c{};
    c.struct_size = sizeof(c);
    c.u = t.u.get();
    c.delta = t.delta.get();
    c.A = t.A.get();
    c.B = t.B.get();
    c.C = t.C.get();
    c.D = t.D.get();
    c.z = t.z.get();
    c.delta_bias = t.delta_bias.get();
    c.initial_states = t.initial_states.get();
    c.dout = t.dout.get();
    c.dfinal_states = t.dfinal_states.get();
    c.checkpoints = t.checkpoints.get();
    c.du = t.du.get();
    c.ddelta = t.ddelta.get();
    c.dA = t.dA.get();
    c.dB = t.dB.get();
    c.dC = t.dC.get();
    c.dD = t.dD.get();
    c.dz = t.dz.get();
    c.ddelta_bias = t.ddelta_bias.get();
    c.dinitial_states = t.dinitial_states.get();
    return call(packjit_ssm_backward, c, map, stream, workspace);
  }

 private:
  using PackedOperator::PackedOperator;
};

}  // namespace v1
}  // namespace packjit
