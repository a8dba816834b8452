// `packjit run` through the command-line library: known results by host execution, and every kind of bad input, each
// with an output file that must stay as it was.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/safetensors.hpp"
#include "cli/terminal.hpp"
#include "generator/generate.hpp"
#include "runtime/errors.hpp"

namespace packjit {
namespace {

namespace fs = std::filesystem;

std::string contents_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write_bytes(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

HostTensor tensor(ElementType type, std::vector<std::int64_t> shape, std::vector<double> values) {
  return HostTensor::from_double(type, std::move(shape), values);
}

std::string config_setting(const Config& config, const std::string& name) {
  return name + "=" + config.values.text(name);
}

/// One row: three tokens of one sequence and one token of padding; y[t] = x[t] + 10 x[t-1].
HostTensors conv_inputs() {
  return {{"x", tensor(ElementType::fp32, {1, 4, 1}, {1, 2, 3, 4})},
          {"weight", tensor(ElementType::fp32, {1, 2}, {10, 1})},
          {"seq_idx", tensor(ElementType::int32, {1, 4}, {0, 0, 0, -1})}};
}

/// Two sequences of two tokens whose states are plain sums of u: dt = 1, A = 0, B = C = 1.
HostTensors scan_inputs() {
  return {{"u", tensor(ElementType::fp32, {1, 4, 1}, {1, 2, 3, 4})},
          {"delta", tensor(ElementType::fp32, {1, 4, 1}, {1, 1, 1, 1})},
          {"A", tensor(ElementType::fp32, {1, 1}, {0})},
          {"B", tensor(ElementType::fp32, {1, 4, 1, 1}, {1, 1, 1, 1})},
          {"C", tensor(ElementType::fp32, {1, 4, 1, 1}, {1, 1, 1, 1})},
          {"position_indices", tensor(ElementType::int64, {1, 4}, {0, 1, 0, 1})}};
}

class RunCommand : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / (std::string("packjit run ") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    in_ = folder_ / "in.safetensors";
    out_ = folder_ / "out.safetensors";
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// Runs the subcommand; what it throws is the caller's. Returns what it printed on stdout.
  std::string run(std::vector<std::string> arguments) {
    CLI::App app("test", "packjit");
    register_run(app);
    arguments.insert(arguments.begin(), "run");
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
    testing::internal::CaptureStdout();
    try {
      app.parse(arguments);
    } catch (...) {
      testing::internal::GetCapturedStdout();
      throw;
    }
    flush_results();
    return testing::internal::GetCapturedStdout();
  }

  std::vector<std::string> command(const std::string& op, std::vector<std::string> more = {}) {
    std::vector<std::string> all = {op, "--in", in_.string(), "--out", out_.string(), "--device", "host"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  HostTensors result_of(const std::string& op, const HostTensors& inputs, std::vector<std::string> more = {}) {
    write_bytes(in_, serialize(inputs));
    (void)run(command(op, std::move(more)));
    return read_safetensors(out_).tensors;
  }

  /// Status 2, a message with this text, the old output untouched and nothing beside it.
  void expect_refused(const std::vector<std::string>& arguments, const std::string& text) {
    write_bytes(out_, "old");
    try {
      (void)run(arguments);
      ADD_FAILURE() << "nothing was thrown; expected: " << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what() << "\n  expected: " << text;
    } catch (const CLI::Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what() << "\n  expected: " << text;
    }
    EXPECT_EQ(contents_of(out_), "old");
    for (const auto& entry : fs::directory_iterator(folder_)) {
      EXPECT_TRUE(entry.path() == in_ || entry.path() == out_) << "left behind: " << entry.path();
    }
  }
  void expect_tensors_refused(const std::string& op, const HostTensors& inputs, const std::string& text,
                              std::vector<std::string> more = {}) {
    write_bytes(in_, serialize(inputs));
    expect_refused(command(op, std::move(more)), text);
  }

  fs::path folder_, in_, out_;
};

using Values = std::vector<double>;

TEST_F(RunCommand, ConvolutionForward) {
  const HostTensors out = result_of("conv1d_pack_fwd", conv_inputs(), {"--activation", "none", "--final-states"});
  EXPECT_EQ(out.at("out").to_double(), (Values{1, 12, 23, 0}));
  EXPECT_EQ(out.at("final_states").shape, (std::vector<std::int64_t>{1, 1, 1}));
  EXPECT_EQ(out.at("final_states").to_double(), (Values{3}));
}

TEST_F(RunCommand, ConvolutionForwardChannelMajor) {
  HostTensors inputs = conv_inputs();
  inputs["x"] = tensor(ElementType::fp32, {1, 2, 4}, {1, 2, 3, 4, 2, 4, 6, 8});
  inputs["weight"] = tensor(ElementType::fp32, {2, 2}, {10, 1, 10, 1});
  const HostTensors out = result_of("conv1d_pack_fwd", inputs, {"--activation", "none", "--layout", "channel-major"});
  EXPECT_EQ(out.at("out").shape, (std::vector<std::int64_t>{1, 2, 4}));
  EXPECT_EQ(out.at("out").to_double(), (Values{1, 12, 23, 0, 2, 24, 46, 0}));
  EXPECT_FALSE(out.contains("final_states"));
}

TEST_F(RunCommand, ConvolutionBackward) {
  HostTensors inputs = conv_inputs();
  inputs["dout"] = tensor(ElementType::fp32, {1, 4, 1}, {1, 1, 1, 1});
  const HostTensors out = result_of("conv1d_pack_bwd", inputs, {"--activation", "none"});
  EXPECT_EQ(out.at("dx").to_double(), (Values{11, 11, 1, 0}));
  EXPECT_EQ(out.at("dweight").to_double(), (Values{3, 6}));
  EXPECT_FALSE(out.contains("dbias"));
}

TEST_F(RunCommand, ConvolutionWithFp32WeightsBesideHalfActivations) {
  HostTensors inputs;
  inputs["x"] = tensor(ElementType::bf16, {1, 2, 1}, {2048, 2048});
  inputs["weight"] = tensor(ElementType::fp32, {1, 2}, {-1, 1 + 0x1p-12});  // bf16 would round the second one to 1
  inputs["dout"] = tensor(ElementType::bf16, {1, 2, 1}, {1, 1});
  const std::vector<std::string> options = {"--activation", "none", "--rows"};
  EXPECT_EQ(result_of("conv1d_pack_fwd", inputs, options).at("out").to_double(), (Values{2048, 0.5}));
  const HostTensors gradients = result_of("conv1d_pack_bwd", inputs, options);
  EXPECT_EQ(gradients.at("dx").type, ElementType::bf16);
  EXPECT_EQ(gradients.at("dx").to_double(), (Values{0x1p-12, 1}));
  EXPECT_EQ(gradients.at("dweight").to_double(), (Values{2048, 4096}));
  inputs["bias"] = tensor(ElementType::bf16, {1}, {0});
  expect_tensors_refused("conv1d_pack_fwd", inputs,
                         "tensor bias has dtype bf16; expected fp32, whatever the activations have", options);
}

TEST_F(RunCommand, ScanForwardAndReport) {
  HostTensors inputs = scan_inputs();
  inputs["D"] = tensor(ElementType::fp32, {1}, {10});
  inputs["initial_states"] = tensor(ElementType::fp32, {2, 1, 1}, {100, 200});
  inputs["something_else"] = tensor(ElementType::fp64, {1}, {0});
  write_bytes(in_, serialize(inputs));
  testing::internal::CaptureStderr();
  const std::string report = run(command("ssm_pack_fwd", {"--no-softplus", "--json"}));
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("ignored: \"something_else\"\n"), std::string::npos) << warning;

  const HostTensors out = read_safetensors(out_).tensors;
  EXPECT_EQ(out.at("out").to_double(), (Values{111, 123, 233, 247}));
  EXPECT_EQ(out.at("final_states").to_double(), (Values{103, 207}));  // initial states ask for them

  const nlohmann::json json = nlohmann::json::parse(report);
  EXPECT_EQ(json.at("operator"), "ssm_pack_fwd");
  EXPECT_EQ(json.at("device").at("kind"), "host");
  EXPECT_EQ(json.at("sizes").at("n_sequences"), 2);
  EXPECT_EQ(json.at("spec").at("softplus"), "off");
  EXPECT_EQ(json.at("outputs").at("out").at("dtype"), "fp32");
  EXPECT_EQ(json.at("ignored"), nlohmann::json({"something_else"}));
}

TEST_F(RunCommand, ScanWithComplexAAndConstantB) {
  HostTensors inputs = scan_inputs();
  inputs["A"] = tensor(ElementType::complex64, {1, 1}, {0, 0});
  inputs["B"] = tensor(ElementType::complex64, {1, 1}, {1, 2});                     // 1 + 2i for all tokens
  inputs["C"] = tensor(ElementType::fp32, {1, 4, 1, 2}, {1, 0, 0, 1, 1, 1, 2, 0});  // 1, i, 1+i, 2
  const HostTensors out = result_of("ssm_pack_fwd", inputs, {"--no-softplus", "--final-states"});
  // h: 1+2i, 3+6i; 3+6i, 7+14i; y = 2 * Re(C * h)
  EXPECT_EQ(out.at("out").to_double(), (Values{2, -12, -6, 28}));
  EXPECT_EQ(out.at("final_states").type, ElementType::complex64);
  EXPECT_EQ(out.at("final_states").to_double(), (Values{3, 6, 7, 14}));

  inputs["dout"] = tensor(ElementType::fp32, {1, 4, 1}, {1, 0, 0, 0});
  const HostTensors gradients = result_of("ssm_pack_bwd", inputs, {"--no-softplus"});
  // y[0] = 2 * Re(C * B * u): by the parts of C, 2 * Re(B u) and -2 * Im(B u); by those of B, 2 and 0.
  EXPECT_EQ(gradients.at("dC").to_double(), (Values{2, -4, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(gradients.at("dB").type, ElementType::complex64);
  EXPECT_EQ(gradients.at("dB").to_double(), (Values{2, 0}));
}

TEST_F(RunCommand, RefusesComplexTensorsThatDoNotFit) {
  HostTensors inputs = scan_inputs();
  inputs["A"] = tensor(ElementType::complex64, {1, 1}, {0, 0});
  expect_tensors_refused("ssm_pack_fwd", inputs,
                         "tensor B has shape (1, 4, 1, 1); expected (batch = 1, seqlen = 4, groups, 2*d_state = 2)");
  inputs["B"] = tensor(ElementType::fp32, {1, 1}, {0});
  inputs["C"] = tensor(ElementType::complex64, {1, 1}, {0, 0});
  expect_tensors_refused("ssm_pack_fwd", inputs, "tensor B has dtype fp32; expected complex64, as A has");
  inputs["B"] = inputs.at("C");
  expect_tensors_refused("ssm_pack_fwd", inputs, "checkpoints = on does not go with complex_A", {"--checkpoints"});
}

/// One sequence of 20 tokens, u = 1, 2, ..., whose states are plain sums of u.
HostTensors long_scan_inputs() {
  Values u(20), ones(20, 1);
  std::iota(u.begin(), u.end(), 1);
  return {{"u", tensor(ElementType::fp32, {1, 20, 1}, u)},
          {"delta", tensor(ElementType::fp32, {1, 20, 1}, ones)},
          {"A", tensor(ElementType::fp32, {1, 1}, {0})},
          {"B", tensor(ElementType::fp32, {1, 20, 1, 1}, ones)},
          {"C", tensor(ElementType::fp32, {1, 20, 1, 1}, ones)}};
}

TEST_F(RunCommand, ScanCheckpointsGoFromTheForwardToTheBackward) {
  HostTensors inputs = long_scan_inputs();
  const HostTensors forward = result_of("ssm_pack_fwd", inputs, {"--no-softplus", "--rows", "--checkpoints"});
  EXPECT_EQ(forward.at("out").to_double()[19], 210);
  EXPECT_EQ(forward.at("checkpoints").shape, (std::vector<std::int64_t>{3, 1, 1}));
  EXPECT_EQ(forward.at("checkpoints").to_double()[0], 36);   // 1 + ... + 8, the state before token 8
  EXPECT_EQ(forward.at("checkpoints").to_double()[1], 136);  // 1 + ... + 16
  EXPECT_FALSE(result_of("ssm_pack_fwd", inputs, {"--no-softplus", "--rows"}).contains("checkpoints"));

  inputs["dout"] = tensor(ElementType::fp32, {1, 20, 1}, Values(20, 1));
  const HostTensors computed = result_of("ssm_pack_bwd", inputs, {"--no-softplus", "--rows"});
  inputs["checkpoints"] = forward.at("checkpoints");
  const HostTensors stored = result_of("ssm_pack_bwd", inputs, {"--no-softplus", "--rows"});
  ASSERT_EQ(stored.size(), computed.size());
  for (const auto& [name, gradient] : computed) EXPECT_EQ(stored.at(name).bytes, gradient.bytes) << name;
  EXPECT_EQ(stored.at("dC").to_double()[16], 153);  // dout * h

  inputs["checkpoints"] = tensor(ElementType::fp32, {3, 1, 1}, {0, 1000, 0});
  EXPECT_EQ(result_of("ssm_pack_bwd", inputs, {"--no-softplus", "--rows"}).at("dC").to_double()[16], 1017);
}

TEST_F(RunCommand, RefusesCheckpointsThatDoNotFit) {
  HostTensors inputs = long_scan_inputs();
  inputs["dout"] = inputs.at("u");
  inputs["checkpoints"] = tensor(ElementType::fp32, {1, 1, 1}, {0});
  expect_tensors_refused("ssm_pack_bwd", inputs,
                         "tensor checkpoints has shape (1, 1, 1); expected (n_checkpoints = 3, dim = 1, d_state = 1)",
                         {"--rows"});
  expect_tensors_refused("ssm_pack_bwd", inputs, "--checkpoints is an option of ssm_pack_fwd", {"--checkpoints"});
  expect_tensors_refused("conv1d_pack_fwd", conv_inputs(), "--checkpoints is an option of ssm_pack_fwd",
                         {"--checkpoints"});
}

TEST_F(RunCommand, HandEditedSourceRunsInPlaceOfTheGeneratedOne) {
  Spec spec(Operator::conv1d_pack_fwd);
  spec.values.set_text("dtype", "fp32");
  spec.values.set("conv_width", 2);
  spec.values.set_text("activation", "none");
  spec.values.set_text("bias", "off");
  Config config(spec.op);
  config.values.set("vector", 1);
  std::string text = generate(spec, config, Target::host).text;
  const fs::path source = folder_ / "edited.cu";
  const std::vector<std::string> options = {"--activation", "none",
                                            "--source",     source.string(),
                                            "--set",        "vector=1",
                                            "--set",        config_setting(config, "block"),
                                            "--set",        config_setting(config, "tile_tokens")};
  write_bytes(source, text);
  EXPECT_EQ(result_of("conv1d_pack_fwd", conv_inputs(), options).at("out").to_double(), (Values{1, 12, 23, 0}));
  fs::remove(out_);

  write_bytes(source, text + "\n#error a mistake of the user\n");
  write_bytes(out_, "old");
  try {
    (void)run(command("conv1d_pack_fwd", options));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("a mistake of the user"), std::string::npos) << error.what();
  }
  EXPECT_EQ(contents_of(out_), "old");
}

/// The Spec and Config of conv_inputs() without activation, as `packjit run` needs them.
std::pair<Spec, Config> edited_pair() {
  Spec spec(Operator::conv1d_pack_fwd);
  spec.values.set_text("dtype", "fp32");
  spec.values.set("conv_width", 2);
  spec.values.set_text("activation", "none");
  spec.values.set_text("bias", "off");
  Config config(spec.op);
  config.values.set("vector", 1);
  return {spec, config};
}

TEST_F(RunCommand, TheKeyOfASourceGivesTheConfig) {
  auto [spec, config] = edited_pair();
  config.values.set("block", 32);
  config.values.set("tile_tokens", 2);
  const fs::path source = folder_ / "edited.cu";
  write_bytes(source, generate(spec, config, Target::host).text);
  const HostTensors out =
      result_of("conv1d_pack_fwd", conv_inputs(), {"--activation", "none", "--source", source.string()});
  EXPECT_EQ(out.at("out").to_double(), (Values{1, 12, 23, 0}));
}

TEST_F(RunCommand, RefusesSourceMadeForSomethingElse) {
  const auto [spec, config] = edited_pair();
  const fs::path source = fs::path(testing::TempDir()) / "packjit run other source.cu";  // not where `out_` is
  const std::vector<std::string> options = {"--activation", "none", "--source", source.string()};
  const auto refused = [&](const std::string& text, const std::string& words) {
    write_bytes(source, text);
    expect_tensors_refused("conv1d_pack_fwd", conv_inputs(), words, options);
  };
  Spec wider = spec;
  wider.values.set("conv_width", 3);
  refused(generate(wider, config, Target::host).text, "made for conv_width=3; the call needs conv_width=2");
  Config vectors = config;
  vectors.values.set("vector", 4);
  const std::string aligned = generate(spec, vectors, Target::host).text;
  refused(aligned, "made for vector=4; the call needs vector=1");
  refused(aligned, "--set vector=1");
  refused(aligned, "--target host -o kernel.cu");
  refused(generate(Spec(Operator::ssm_pack_fwd), Config(Operator::ssm_pack_fwd), Target::host).text,
          "a kernel of ssm_pack_fwd; needed: conv1d_pack_fwd");
  refused(generate(spec, config, Target::cuda).text, "generate it with --target host");
  const std::string good = generate(spec, config, Target::host).text;
  refused(good.substr(good.find('\n', good.find("// Key: "))), "the file has no line '// Key: ...'");
  refused("// Key: conv1d_pack_fwd dtype=fp32\n", "is not one of this version");
  refused("// Key: mine\n", "is not one of this version");

  write_bytes(source, good);
  std::vector<std::string> contradiction = options;
  contradiction.insert(contradiction.end(), {"--set", "block=32"});
  expect_tensors_refused("conv1d_pack_fwd", conv_inputs(), "--set block=32 contradicts the key", contradiction);
  fs::remove(source);
}

TEST_F(RunCommand, RefusesTensorsThatAreMissing) {
  HostTensors inputs = conv_inputs();
  inputs.erase("weight");
  expect_tensors_refused("conv1d_pack_fwd", inputs, "tensor weight is missing; expected shape (dim = 1, conv_width)");
  expect_tensors_refused("conv1d_pack_fwd", {}, "tensor x is missing; expected shape (batch, seqlen, dim)");
  expect_tensors_refused("conv1d_pack_bwd", conv_inputs(),
                         "tensor dout is missing; expected shape (batch = 1, seqlen = 4, dim = 1)");
}

TEST_F(RunCommand, RefusesShapesThatDoNotFit) {
  HostTensors inputs = scan_inputs();
  inputs["delta"] = tensor(ElementType::fp32, {1, 3, 1}, {1, 1, 1});
  expect_tensors_refused("ssm_pack_fwd", inputs,
                         "tensor delta has shape (1, 3, 1); expected (batch = 1, seqlen = 4, dim = 1)");
  inputs = scan_inputs();
  inputs["initial_states"] = tensor(ElementType::fp32, {1, 1, 1}, {0});
  expect_tensors_refused("ssm_pack_fwd", inputs,
                         "tensor initial_states has shape (1, 1, 1); expected (n_sequences = 2, dim = 1, d_state = 1)");
  inputs = scan_inputs();
  inputs["u"] = tensor(ElementType::fp32, {4}, {1, 2, 3, 4});
  expect_tensors_refused("ssm_pack_fwd", inputs, "tensor u has shape (4); expected (batch, seqlen, dim)");
  inputs["u"] = tensor(ElementType::fp32, {1, 0, 1}, {});
  expect_tensors_refused("ssm_pack_fwd", inputs, "tensor u has shape (1, 0, 1); expected (batch, seqlen, dim)");
  // Channel-major files are checked as such.
  inputs = conv_inputs();
  inputs.erase("seq_idx");
  expect_tensors_refused("conv1d_pack_fwd", inputs, "tensor weight has shape (1, 2); expected (dim = 4, conv_width)",
                         {"--layout", "channel-major", "--rows"});
}

TEST_F(RunCommand, RefusesSizesOutOfRange) {
  HostTensors inputs = conv_inputs();
  inputs["weight"] = HostTensor::zeros(ElementType::fp32, {1, 17});
  expect_tensors_refused("conv1d_pack_fwd", inputs,
                         "tensor weight: conv_width = 17 is out of range: expected an integer from 1 to 16");
  inputs = scan_inputs();
  inputs["A"] = HostTensor::zeros(ElementType::fp32, {1, 513});
  expect_tensors_refused("ssm_pack_fwd", inputs,
                         "tensor A: d_state = 513 is out of range: expected an integer from 1 to 512");
  inputs = scan_inputs();
  inputs["B"] = HostTensor::zeros(ElementType::fp32, {1, 4, 3, 1});
  inputs["C"] = HostTensor::zeros(ElementType::fp32, {1, 4, 3, 1});
  expect_tensors_refused("ssm_pack_fwd", inputs, "tensor B has 3 groups; expected a divisor of dim = 1");
}

TEST_F(RunCommand, RefusesDtypesThatDoNotFit) {
  HostTensors inputs = scan_inputs();
  inputs["u"] = tensor(ElementType::int32, {1, 4, 1}, {1, 2, 3, 4});
  expect_tensors_refused("ssm_pack_fwd", inputs, "tensor u: expected fp32, fp16 or bf16, found int32");
  inputs = scan_inputs();
  inputs["position_indices"] = tensor(ElementType::fp32, {1, 4}, {0, 1, 0, 1});
  expect_tensors_refused("ssm_pack_fwd", inputs,
                         "position_indices has dtype fp32; expected int16, uint16, int32 or int64");
}

// Mixed precision: the message names both dtypes.
TEST_F(RunCommand, K21_NamesBothDtypes) {
  HostTensors inputs = scan_inputs();
  inputs["u"] = tensor(ElementType::bf16, {1, 4, 1}, {1, 2, 3, 4});
  expect_tensors_refused("ssm_pack_fwd", inputs, "tensor delta has dtype fp32; expected bf16, as u has");
  inputs = scan_inputs();
  inputs["A"] = tensor(ElementType::fp16, {1, 1}, {0});
  expect_tensors_refused("ssm_pack_fwd", inputs,
                         "tensor A has dtype fp16; expected fp32, whatever the activations have");
}

TEST_F(RunCommand, NamesDtypesThatNoOperatorTakes) {
  const std::string header = R"({"x":{"dtype":"F8_E4M3","shape":[1,4,1],"data_offsets":[0,4]}}  )";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  write_bytes(in_, bytes + header + "1234");
  expect_refused(command("conv1d_pack_fwd"), "tensor x has dtype \"F8_E4M3\"; expected F32, F16 or BF16");
}

TEST_F(RunCommand, RefusesBoundariesThatAreMissingWrongOrContradictory) {
  HostTensors inputs = scan_inputs();
  inputs.erase("position_indices");
  expect_tensors_refused("ssm_pack_fwd", inputs, "packed operators need boundaries, and none were given");
  inputs["position_indices"] = tensor(ElementType::int64, {1, 4}, {0, 1, 3, 4});
  expect_tensors_refused("ssm_pack_fwd", inputs, "position_indices: row 0, token 2 has position 3; expected 2");
  inputs.erase("position_indices");
  inputs["cu_seqlens"] = tensor(ElementType::int64, {4}, {0, 3, 2, 4});
  expect_tensors_refused("ssm_pack_fwd", inputs, "cu_seqlens[2] is 2, below cu_seqlens[1], which is 3");
  inputs["cu_seqlens"] = tensor(ElementType::int64, {2}, {0, 3});
  expect_tensors_refused("ssm_pack_fwd", inputs, "the last offset, is 3; expected the token count 4");
  expect_tensors_refused("ssm_pack_fwd", scan_inputs(), "two forms of boundaries disagree, first at row 0, token 2",
                         {"--rows"});
}

TEST_F(RunCommand, RefusesDamagedFiles) {
  const std::string whole = serialize(conv_inputs());
  for (const std::size_t length : {std::size_t{0}, std::size_t{5}, std::size_t{40}, whole.size() - 1}) {
    write_bytes(in_, whole.substr(0, length));
    expect_refused(command("conv1d_pack_fwd"), in_.string());
  }
  write_bytes(in_, std::string(8, '\xff') + whole.substr(8));
  expect_refused(command("conv1d_pack_fwd"), "a header of 18446744073709551615 bytes is announced");
}

TEST_F(RunCommand, RefusesUnreadableInputs) {
  expect_refused(command("conv1d_pack_fwd"), "No such file");  // in_ was never written
  write_bytes(in_, serialize(conv_inputs()));
  expect_refused(command("conv1d_pack_fwd", {"--source", (folder_ / "none.cu").string()}),
                 "cannot read the kernel source");
}

TEST_F(RunCommand, RefusesUnwritableOutputs) {
  write_bytes(in_, serialize(conv_inputs()));
  const fs::path missing = folder_ / "no such folder" / "out";
  expect_refused({"conv1d_pack_fwd", "--in", in_.string(), "--out", missing.string(), "--device", "host"},
                 missing.string());
  expect_refused({"conv1d_pack_fwd", "--in", in_.string(), "--out", folder_.string(), "--device", "host"},
                 folder_.string());
}

TEST_F(RunCommand, RefusesOptionsOutOfRange) {
  write_bytes(in_, serialize(conv_inputs()));
  expect_refused(command("conv2d"), "there is no operator 'conv2d'");
  expect_refused(command("conv1d_pack_fwd", {"--layout", "sideways"}), "sideways");
  expect_refused(command("conv1d_pack_fwd", {"--activation", "gelu"}), "gelu");
  expect_refused({"conv1d_pack_fwd", "--in", in_.string(), "--out", out_.string(), "--device", "tpu"}, "tpu");
  expect_refused({"conv1d_pack_fwd", "--in", in_.string()}, "--out");
  expect_refused(command("conv1d_pack_fwd", {"--set", "block"}), "--set 'block': expected key=value");
  expect_refused(command("conv1d_pack_fwd", {"--set", "blocks=32"}), "there is no field 'blocks' here");
  expect_refused(command("conv1d_pack_fwd", {"--set", "block=7"}), "block = 7 is out of range");
  expect_refused(command("conv1d_pack_fwd", {"--set", "block=1e2"}), "block = '1e2' is not understood");
  expect_refused(command("conv1d_pack_fwd", {"--no-softplus"}), "--no-softplus is an option of ssm_pack");
  expect_refused(command("ssm_pack_fwd", {"--activation", "silu"}), "--activation is an option of conv1d_pack");
  expect_refused(command("ssm_pack_bwd", {"--final-states"}), "--final-states is an option of the forward operators");
}

TEST_F(RunCommand, NoGpuWhereOneIsDemandedIsTheEnvironment) {
  write_bytes(in_, serialize(conv_inputs()));
  write_bytes(out_, "old");
  try {
    (void)run({"conv1d_pack_fwd", "--in", in_.string(), "--out", out_.string(), "--device", "cuda"});
    GTEST_SKIP() << "there is a GPU";
  } catch (const EnvironmentError&) {
    EXPECT_EQ(contents_of(out_), "old");
  }
}

}  // namespace
}  // namespace packjit
