// Faults K13 to K22: numbers, sizes, limits.
#include <array>
#include <cmath>
#include <regex>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "checking/error_bounds.hpp"
#include "generator/generate.hpp"
#include "tests/faults/fault_test.hpp"

namespace packjit::checking {
namespace {

constexpr std::array kBackwards = {Operator::conv1d_pack_bwd, Operator::ssm_pack_bwd};
constexpr std::array kScans = {Operator::ssm_pack_fwd, Operator::ssm_pack_bwd};
constexpr std::array kConvolutions = {Operator::conv1d_pack_fwd, Operator::conv1d_pack_bwd};

TEST_P(KnownFaults, K13_nan_where_the_length_is_no_multiple_of_the_tile) {
  for (const Operator op : kOperators) {
    for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
      for (const std::int64_t seqlen : {200, 300}) {
        Case c = small(op, {{seqlen}}, dtype);
        // 256 tokens a tile where they fit; 64 where shared memory sets the limit.
        c.config = is_scan(op) ? decltype(c.config){{"tile_tokens", "64"}, {"block", "32"}}
                               : decltype(c.config){{"tile_tokens", "256"}};
        expect_oracle(c);
      }
    }
  }
}

TEST_P(KnownFaults, K14_loose_tolerances) {
  const Case c = small(Operator::ssm_pack_bwd, {{30, 5, 13}});
  const CaseRun run = first_run(device(), c);
  const Reference reference = compute_reference(c, run.inputs);
  const auto passes = [&](const std::string& tensor, std::size_t element, double factor) {
    HostTensors outputs = run.outputs;
    HostTensor& changed = outputs.at(tensor);
    std::vector<double> values = changed.to_double();
    values[element] *= factor;
    changed = HostTensor::from_double(changed.type, changed.shape, values);
    const std::vector<Result> results = compare_with_reference(CheckKind::oracle, c, outputs, reference);
    return std::all_of(results.begin(), results.end(), [](const Result& result) { return result.pass(); });
  };
  EXPECT_TRUE(passes("dA", 0, 1));
  EXPECT_FALSE(passes("dA", 0, 1e5));
  // The largest element off by a thousandth: within every absolute tolerance in use, and wrong.
  const std::vector<double> dA = run.outputs.at("dA").to_double();
  std::size_t largest = 0;
  for (std::size_t i = 0; i < dA.size(); ++i) largest = std::abs(dA[i]) > std::abs(dA[largest]) ? i : largest;
  EXPECT_FALSE(passes("dA", largest, 1.001));
  // One element of a short sequence is too little for the whole tensor, but not for its own sequence.
  EXPECT_FALSE(passes("du", 31 * 4, 1.01));
}

/// Many addends of one sign: a running fp32 sum of 0.1 is 4e-5 off after 4,096 of them, the bound is 1e-5.
TEST_P(KnownFaults, K14_long_sums_of_similar_terms) {
  constexpr std::int64_t kTokens = 4096;
  const auto constant = [](std::vector<std::int64_t> shape, double value) {
    const auto count = static_cast<std::size_t>(count_of(shape));
    return HostTensor::from_double(ElementType::fp32, std::move(shape), std::vector<double>(count, value));
  };
  Boundaries boundaries;
  boundaries.form = Boundaries::Form::rows;
  const SequenceMap map = build_sequence_map(boundaries, 1, kTokens);
  // With C = 0 only D reaches the output: dD = sum of dout * u = 4096 * 0.1.
  HostTensors scan;
  for (const char* name : {"u", "delta", "dout"}) scan[name] = constant({1, kTokens, 1}, name[1] == 'o' ? 1.0 : 0.1);
  for (const char* name : {"B", "C"}) scan[name] = constant({1, kTokens, 1, 1}, 0.0);
  scan["A"] = constant({1, 1}, -1.0);
  scan["D"] = constant({1}, 1.0);
  const HostTensors sums =
      run_on_host_tensors(device(), HostCall{Spec(Operator::ssm_pack_bwd), {}, {}, {}, {}}, scan, map);
  EXPECT_NEAR(sums.at("dD").to_double()[0], 409.6, 409.6 * 1e-6);
  // One tap of weight 0 and no activation: dbias = sum of dout, dweight = sum of dout * x.
  HostTensors conv;
  conv["x"] = constant({1, kTokens, 1}, 0.1);
  conv["dout"] = constant({1, kTokens, 1}, 0.1);
  conv["weight"] = constant({1, 1}, 0.0);
  conv["bias"] = constant({1}, 0.0);
  HostCall call{Spec(Operator::conv1d_pack_bwd), {}, {}, {}, {}};
  call.spec.values.set_text("activation", "none");
  const HostTensors totals = run_on_host_tensors(device(), call, conv, map);
  EXPECT_NEAR(totals.at("dbias").to_double()[0], 409.6, 409.6 * 1e-5);
  EXPECT_NEAR(totals.at("dweight").to_double()[0], 40.96, 40.96 * 1e-5);
}

/// Token stride 2^30: the third token lies 2^31 elements on, where 32-bit products have wrapped.
/// dB and dC of a sequence of one token are one sum over channels times a vector, so where its addends cancel, all of
/// them do.
TEST_P(KnownFaults, K14_sums_over_channels_that_cancel) {
  Case c = small(Operator::ssm_pack_bwd, {std::vector<std::int64_t>(64, 1)}, Dtype::fp16);
  c.dim = 24;
  c.softplus = c.D = c.z = c.delta_bias = false;
  expect_oracle(c);
  c.config = {{"channel_sums", "registers"}};
  expect_oracle(c);
}

TEST_P(KnownFaults, K15_32_bit_offsets) {
  constexpr std::int64_t kPitch = std::int64_t{1} << 30;
  const std::pair<Operator, const char*> calls[] = {{Operator::conv1d_pack_fwd, "x"},
                                                    {Operator::conv1d_pack_fwd, "out"},
                                                    {Operator::ssm_pack_fwd, "u"},
                                                    {Operator::conv1d_pack_bwd, "dx"},
                                                    {Operator::ssm_pack_bwd, "dout"}};
  for (const auto& [op, tensor] : calls) {
    Case c = small(op, {{3}}, Dtype::bf16);
    const HostTensors inputs = make_inputs(c);
    StridedCall call(device(), c);
    call.place(tensor, {0, kPitch, 1});
    expect_pass(compare_with_reference(CheckKind::oracle, c, call.run(inputs), compute_reference(c, inputs)));
  }
}

/// Every variable of the generated source that can hold a row, a token, a state slot or a channel of the whole problem
/// is 64 bits wide, and the 32-bit fields of a work item are multiplied with 64-bit strides only. (Fields of structs
/// are left out: a TilePlace counts inside a tile.)
TEST_P(KnownFaults, K15_products_with_a_token_index_are_64_bit) {
  const std::regex structs("struct[^{;]*\\{[^}]*\\}");
  const std::regex narrow("\\b(?:int|unsigned|uint32)\\s+(\\w+)\\s*[=;,)]");
  const std::regex narrow_product("(?:\\bitem\\.\\w+\\s*\\*(?!\\s*args\\.))|(?:\\*\\s*item\\.)");
  const std::set<std::string> places = {"token", "row", "channel", "slot", "begin", "end", "finished", "state"};
  const Target target = device().info().kind == "host" ? Target::host : Target::cuda;
  const auto check = [&](const Case& c) {
    const std::string text = generate(spec_of(c), config_of(c, "sm_90"), target).text;
    EXPECT_NE(text.find("int64 offset_of(const View3& view, int64 row, int64 token, int64 channel)"),
              std::string::npos);
    EXPECT_NE(text.find("long long batch, token, channel;"), std::string::npos);
    const std::string code = std::regex_replace(text, structs, "");
    const std::sregex_iterator end;
    for (std::sregex_iterator found(code.begin(), code.end(), narrow); found != end; ++found) {
      EXPECT_FALSE(places.contains((*found)[1].str())) << name_of(c.op) << ": " << found->str();
    }
    for (std::sregex_iterator found(code.begin(), code.end(), narrow_product); found != end; ++found) {
      ADD_FAILURE() << name_of(c.op) << ": a product of 32-bit values: " << found->str();
    }
  };
  for (const Operator op : kOperators) {
    for (const Layout layout : {Layout::token_major, Layout::channel_major, Layout::strided}) {
      for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {  // sums of dB and dC by registers, by tensor cores
        for (const bool checkpoints : {false, true}) {
          Case c = with_states(small(op, {{3}}, dtype));
          c.layout = layout;
          c.checkpoints = checkpoints;
          check(c);
        }
      }
    }
  }
}

TEST_P(KnownFaults, K16_more_channels_or_sequences_than_a_grid_dimension) {
  for (const Operator op : kOperators) {
    Case c = small(op, {{4}});
    c.dim = 65'537;
    c.d_state = 1;
    c.conv_width = 2;
    c.layout = Layout::channel_major;  // channels are the slow dimension of the convolution's grid
    c.config = {{"block", "32"}};
    expect_oracle(c);
  }
  // Forward, sequences are the grid's second dimension; backward, at most 128 blocks share them.
  for (const auto& [op, sequences] :
       {std::pair{Operator::ssm_pack_fwd, std::size_t{65'537}}, std::pair{Operator::ssm_pack_bwd, std::size_t{300}}}) {
    Case c = small(op, {std::vector<std::int64_t>(sequences, 1)});
    c.dim = c.d_state = 1;
    c.D = c.z = false;  // one number a sequence: a sum that cancels has no relative error worth the name
    c.config = {{"block", "32"}};
    expect_oracle(c);
  }
}

TEST_P(KnownFaults, K17_any_number_of_states) {
  for (const Operator op : kScans) {
    for (const std::int64_t d_state : {1, 3, 17, 512}) {
      Case c = with_states(small(op, {{9, 2, 6}}));
      c.d_state = d_state;
      expect_oracle(c);
      c.layout = Layout::channel_major;
      expect_oracle(c);
    }
  }
  Spec spec(Operator::ssm_pack_fwd);
  EXPECT_THROW(spec.values.set("d_state", 513), std::invalid_argument);
}

// Few channels a block and short tiles: more threads than there is to stage. Those too many once wrote over other
// channels.
TEST_P(KnownFaults, channel_major_tiles_smaller_than_the_block) {
  for (const Operator op : kScans) {
    for (const std::int64_t d_state : {129, 300}) {
      Case c = small(op, {{20}});
      c.dim = 3;
      c.d_state = d_state;
      c.layout = Layout::channel_major;
      expect_oracle(c);
    }
  }
}

// Behind the end of a sequence nothing decays, so what comes after it reaches the tokens there, which must have no
// share in the sum of ddelta; without softplus, too.
TEST_P(KnownFaults, delta_bias_gets_nothing_from_behind_the_end) {
  for (const std::int64_t length : {1, 5, 17}) {
    Case c = small(Operator::ssm_pack_bwd, {{length}});
    c.softplus = false;
    c.final_states = true;
    expect_oracle(c);
  }
}

// Nor does what shared memory holds there change the states at the end.
TEST_P(KnownFaults, final_states_get_nothing_from_behind_the_end) {
  for (const std::int64_t length : {1, 5, 17}) {
    for (const bool softplus : {false, true}) {
      Case c = small(Operator::ssm_pack_fwd, {{length}});
      c.softplus = softplus;
      c.final_states = true;
      expect_oracle(c);
    }
  }
}

TEST_P(KnownFaults, K18_any_number_of_taps) {
  for (const Operator op : kConvolutions) {
    for (const std::int64_t conv_width : {1, 2, 5, 8, 16}) {
      Case c = with_states(small(op, {{20, 3, 1, 8, -2}}));
      c.conv_width = conv_width;
      expect_oracle(c);
    }
    Spec spec(op);
    try {
      spec.values.set("conv_width", 17);
      ADD_FAILURE() << "17 taps were taken";
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("16"), std::string::npos) << error.what();
    }
  }
}

TEST_P(KnownFaults, K19_strides_and_addresses_without_alignment) {
  for (const Operator op : kOperators) {
    for (const std::int64_t dim : {7, 100}) {
      Case c = small(op, {{6, 5}, {4, 7}}, Dtype::bf16);
      c.dim = dim;
      const HostTensors inputs = make_inputs(c);
      const Reference reference = compute_reference(c, inputs);
      StridedCall odd_pitch(device(), c), odd_base(device(), c);
      for (const char* tensor : {"x", "u", "z", "out", "dx", "du", "dout"}) {
        odd_pitch.place(tensor, {11 * (dim + 1), dim + 1, 1});
        odd_base.place(tensor, {}, 1);
      }
      expect_pass(compare_with_reference(CheckKind::oracle, c, odd_pitch.run(inputs), reference));
      expect_pass(compare_with_reference(CheckKind::oracle, c, odd_base.run(inputs), reference));
    }
  }
}

TEST_P(KnownFaults, fp32_weights_beside_half_activations) {
  for (const Operator op : kConvolutions) {
    for (const auto& [dtype, width, vector] :
         {std::tuple{Dtype::bf16, 4, "8"}, {Dtype::fp16, 3, "4"}, {Dtype::bf16, 4, "2"}, {Dtype::fp16, 7, "1"}}) {
      Case c = with_states(small(op, {{20, 3, 1, 8, -2}}, dtype));
      c.dim = 24;
      c.conv_width = width;
      c.fp32_weights = true;
      c.config = {{"vector", vector}};
      expect_oracle(c);
      // Where they begin at no multiple of an access.
      const HostTensors inputs = make_inputs(c);
      StridedCall odd_base(device(), c);
      for (const char* tensor : {"weight", "bias"}) odd_base.place(tensor, {}, 1);
      expect_pass(compare_with_reference(CheckKind::oracle, c, odd_base.run(inputs), compute_reference(c, inputs)));
    }
  }
}

/// Eight of them are two accesses of 16 bytes, so they need not begin at a multiple of 32.
TEST_P(KnownFaults, fp32_weights_need_the_alignment_of_an_access) {
  alignas(32) static std::array<char, 64> memory{};  // never read
  Spec spec(Operator::conv1d_pack_fwd);
  spec.values.set("fp32_weights", 1);
  for (const auto& [past, fitting] : {std::pair{0, 8}, {16, 8}, {8, 2}, {4, 1}}) {
    TensorViews views;
    for (const char* name : {"x", "out"}) views[name] = {memory.data(), ElementType::bf16, {1, 4, 8}, {32, 8, 1}};
    views["weight"] = {memory.data() + past, ElementType::fp32, {8, 4}, {4, 1}};
    views["bias"] = {memory.data(), ElementType::fp32, {8}, {1}};
    Config config(spec.op);
    config.values.set("vector", 8);
    specialise(spec, config, views);
    EXPECT_EQ(config.values["vector"], fitting) << past << " bytes past a multiple of 32";
  }
}

TEST_P(KnownFaults, K20_strides_of_size_one_dimensions) {
  for (const Operator op : kOperators) {
    for (const auto& rows : {std::vector<std::vector<std::int64_t>>{{1}, {1}}, {{1}}, {{3, 2}}}) {
      Case c = small(op, rows);
      const std::int64_t row = c.seqlen() * c.dim;
      const HostTensors inputs = make_inputs(c);
      StridedCall call(device(), c);
      for (const char* tensor : {"x", "u", "delta", "z", "out", "dout", "dx"}) {
        call.place(tensor, {c.batch() == 1 ? -12'345 : row, c.seqlen() == 1 ? 77'777 : c.dim, 1});
      }
      expect_pass(compare_with_reference(CheckKind::oracle, c, call.run(inputs), compute_reference(c, inputs)));
    }
  }
}

TEST_P(KnownFaults, K21_mixed_dtypes_are_both_named) {
  const Case c = small(Operator::ssm_pack_fwd, {{5, 3}}, Dtype::bf16);
  HostTensors inputs = make_inputs(c);
  HostTensor& B = inputs.at("B");
  B = HostTensor::from_double(ElementType::fp32, B.shape, B.to_double());
  try {
    (void)run_case(device(), c, inputs);
    ADD_FAILURE() << "fp32 B beside bf16 u was taken";
  } catch (const std::invalid_argument& error) {
    const std::string message = error.what();
    for (const char* part : {"B", "bf16", "fp32"}) EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST_P(KnownFaults, K22_same_inputs_same_bits) {
  for (const Operator op : kBackwards) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
      Case c = with_states(small(op, {{40, 3, 21}, {64}}, dtype));
      c.dim = 40;
      const CaseRun run = first_run(device(), c);
      for (int repeat = 0; repeat < 3; ++repeat) expect_pass(check_repeat(device(), run));
      expect_pass(check_second_config(device(), run, compute_reference(c, run.inputs)));
    }
  }
}

}  // namespace
}  // namespace packjit::checking
