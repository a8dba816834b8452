#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

// doctor, generate, compile and inspect as their users call them. None of these needs a GPU.
namespace {

namespace fs = std::filesystem;

struct Outcome {
  int status;
  std::string text;  ///< what the shell line printed on its stdout
};

/// Runs `variables packjit arguments` through the shell; `arguments` may hold redirections.
Outcome packjit(const std::string& arguments, const std::string& variables = "") {
  const std::string line = variables + " '" + PACKJIT_PROGRAM + "' " + arguments;
  FILE* pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) return {-1, "popen failed"};
  std::string text;
  std::array<char, 4096> part{};
  while (const std::size_t n = std::fread(part.data(), 1, part.size(), pipe)) text.append(part.data(), n);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

nlohmann::json json_of(const std::string& arguments, const std::string& variables = "") {
  const Outcome outcome = packjit(arguments, variables);
  EXPECT_EQ(outcome.status, 0) << arguments;
  return nlohmann::json::parse(outcome.text, nullptr, false);
}

class Folder {
 public:
  Folder() {
    static int count = 0;
    path =
        fs::path(testing::TempDir()) / ("kernel commands " + std::to_string(getpid()) + "." + std::to_string(count++));
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string quoted(const std::string& name) const { return "'" + (path / name).string() + "'"; }
  fs::path path;
};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void expect_error(const std::string& arguments, int status, const std::string& words,
                  const std::string& variables = "") {
  const Outcome outcome = packjit(arguments + " 2>&1 >/dev/null", variables);
  EXPECT_EQ(outcome.status, status) << arguments << "\n" << outcome.text;
  EXPECT_EQ(outcome.text.rfind("packjit: ", 0), 0U) << outcome.text;
  EXPECT_NE(outcome.text.find(words), std::string::npos) << outcome.text;
}

TEST(Generate, PrintsWhatItWritesAndHonoursEveryFlag) {
  const Folder folder;
  const std::string spec = "generate ssm_pack_fwd --d-state 8 --dtype fp16 --z off --set block=64 --set tile_tokens=8";
  const Outcome printed = packjit(spec);
  EXPECT_EQ(printed.status, 0);
  for (const char* part : {"d_state=8 ", "dtype=fp16 ", " z=off ", " block=64 ", " tile_tokens=8 "}) {
    EXPECT_NE(printed.text.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(packjit(spec + " -o " + folder.quoted("kernel.cu")).status, 0);
  EXPECT_EQ(read(folder.path / "kernel.cu"), printed.text);
}

// K29, K34: the same bytes in another directory, locale and home.
TEST(Generate, K34_SameBytesInAnyLocaleAndDirectory) {
  const std::string first = packjit("generate ssm_pack_bwd", "cd / && LC_ALL=C HOME=/").text;
  EXPECT_EQ(packjit("generate ssm_pack_bwd", "cd /tmp && LC_ALL=de_DE.UTF-8 HOME=/tmp CUDA_VISIBLE_DEVICES=").text,
            first);
  EXPECT_GT(first.size(), 1000U);
}

TEST(Generate, RefusesWhatIsOutOfRangeOrUnknown) {
  expect_error("generate scan", 2, "ssm_pack_fwd");
  expect_error("generate", 2, "OP");
  expect_error("generate ssm_pack_fwd --d-state 513", 2, "from 1 to 512");
  expect_error("generate ssm_pack_fwd --d-state 0", 2, "from 1 to 512");
  expect_error("generate conv1d_pack_fwd --conv-width 17", 2, "from 1 to 16");
  expect_error("generate conv1d_pack_fwd --d-state 16", 2, "--d-state does not apply to conv1d_pack_fwd");
  expect_error("generate ssm_pack_fwd --conv-width 4", 2, "--conv-width does not apply to ssm_pack_fwd");
  expect_error("generate ssm_pack_fwd --form rows", 2, "--form does not apply to ssm_pack_fwd");
  expect_error("generate sequence_map --dtype bf16", 2, "--dtype does not apply to sequence_map");
  expect_error("generate sequence_map --form lengths", 2, "position_indices, seq_idx, cu_seqlens, rows");
  expect_error("run sequence_map --in x.safetensors --out y.safetensors", 2, "there is no operator 'sequence_map'");
  expect_error("generate ssm_pack_fwd --dtype fp64", 2, "fp32, fp16, bf16");
  expect_error("generate ssm_pack_fwd --softplus maybe", 2, "off, on");
  expect_error("generate ssm_pack_fwd --d-state 1e1", 2, "1e1");
  expect_error("generate ssm_pack_fwd --set blocks=128", 2, "blocks");
  expect_error("generate ssm_pack_fwd --set block", 2, "key=value");
  expect_error("generate ssm_pack_fwd --set block=33", 2, "power of two");
  expect_error("generate ssm_pack_fwd --set block=64 --set block=128", 2, "block is set twice");
  const std::string itself = PACKJIT_BENCH_DATA "/mixed_lengths.txt";  // any file
  expect_error("run ssm_pack_fwd --in " + itself + " --out " + itself, 2, "--in and --out are the same file");
  expect_error("run ssm_pack_fwd --in no-such-file --source " + itself + " --out " + itself, 2,
               "--source and --out are the same file");
  expect_error("generate ssm_pack_fwd --arch hopper", 2, "sm_90");
  expect_error("generate ssm_pack_fwd --target tpu", 2, "cuda or host");
  expect_error("generate ssm_pack_fwd -o /no/such/folder/kernel.cu", 2, "/no/such/folder/kernel.cu");
}

TEST(Compile, ReportsAndWritesImagesForEachArchitecture) {
  const Folder folder;
  const auto json = json_of("compile conv1d_pack_fwd --arch sm_90,sm_80 --json -o " + folder.quoted("images/"));
  ASSERT_EQ(json["images"].size(), 2U);
  EXPECT_EQ(json["images"][0]["arch"], "sm_90");
  EXPECT_EQ(json["images"][1]["arch"], "sm_80");
  const auto& kernel = json["images"][0]["kernels"][0];
  EXPECT_EQ(kernel["name"], "conv1d_pack_fwd");
  EXPECT_GT(kernel["registers"], 8);
  EXPECT_LE(kernel["registers"], 255);
  EXPECT_EQ(kernel["block"], 128);
  EXPECT_GE(kernel["occupancy"]["blocks"], 1);
  const std::string cubin = read(folder.path / "images/conv1d_pack_fwd.sm_80.cubin");
  EXPECT_EQ(cubin.size(), json["images"][1]["cubin_bytes"]);
  EXPECT_EQ(cubin.substr(1, 3), "ELF");
  EXPECT_NE(read(folder.path / "images/conv1d_pack_fwd.sm_90.ptx").find(".target sm_90"), std::string::npos);
}

TEST(Bench, MapRefusesWhatItCannotMeasure) {
  expect_error("bench map --tokens 0", 2, "tokens 0");
  expect_error("bench map --rows 4294967296 --tokens 4294967296", 2, "at most 2147483647 tokens");
  expect_error("bench map --dim 4294967296", 2, "dim 4294967296");
  expect_error("bench map --shortest 9 --longest 8", 2, "lengths rise from 9 to 8");
}

TEST(Compile, MapsOfEveryFormKeepOutOfLocalMemory) {
  for (const std::string form : {"position_indices", "seq_idx", "cu_seqlens", "rows"}) {
    const auto json = json_of("compile sequence_map --form " + form + " --index uint16 --arch sm_90,sm_75 --json");
    EXPECT_EQ(json["spill_free"], true) << form;
    EXPECT_EQ(json["images"][0]["kernels"].back()["name"], "sequence_map_tokens");
  }
}

TEST(Compile, TheTableNamesTheKernel) {
  const Outcome outcome = packjit("compile conv1d_pack_fwd --arch sm_90 --conv-width 2 --dtype fp32");
  EXPECT_EQ(outcome.status, 0);
  for (const char* words : {"dtype=fp32", "conv_width=2", "registers", "sm_90    conv1d_pack_fwd"}) {
    EXPECT_NE(outcome.text.find(words), std::string::npos) << outcome.text;
  }
}

/// Generated source with `tail` behind it.
void write_edited(const Folder& folder, const std::string& name, const std::string& tail) {
  std::ofstream(folder.path / name) << packjit("generate conv1d_pack_fwd").text << tail;
}

TEST(Compile, EditedSourceIsBadInputWhereItDoesNotCompile) {
  const Folder folder;
  write_edited(folder, "edited.cu", "extern \"C\" __global__ void mine() {\n  nope();\n}\n");
  expect_error("compile conv1d_pack_fwd --arch sm_90 --source " + folder.quoted("edited.cu"), 2, ":   nope();");
  expect_error("compile conv1d_pack_fwd --arch sm_90 --source " + folder.quoted("missing.cu"), 2, "missing.cu");
  write_edited(folder, "local.cu",
               "extern \"C\" __global__ void mine(float* p, int n) {\n"
               "  float a[64];\n"
               "  for (int i = 0; i < 64; i++) a[i] = p[i];\n"
               "  for (int i = 0; i < n; i++) a[(i * 7 + n) & 63] += a[i & 63];\n"
               "  p[0] = a[n & 63];\n}\n");
  const std::string local = "compile conv1d_pack_fwd --arch sm_90 --source " + folder.quoted("local.cu");
  EXPECT_EQ(packjit(local).status, 0);
  expect_error(local + " --forbid-spills", 4, "mine on sm_90 uses 256 bytes of local memory");
}

TEST(Compile, EditedSourceMustBeOfTheSameKind) {
  const Folder folder;
  std::ofstream(folder.path / "keyless.cu") << "extern \"C\" __global__ void mine() {}\n";
  expect_error("compile conv1d_pack_fwd --source " + folder.quoted("keyless.cu"), 2,
               "packjit generate conv1d_pack_fwd");
  write_edited(folder, "edited.cu", "");
  const std::string source = " --arch sm_90 --source " + folder.quoted("edited.cu");
  EXPECT_EQ(packjit("compile conv1d_pack_fwd" + source + " --conv-width 4").status, 0);
  expect_error("compile conv1d_pack_fwd --conv-width 2" + source, 2, "--conv-width 2 contradicts the key");
  expect_error("compile conv1d_pack_fwd --set block=32" + source, 2, "--set block=32 contradicts the key");
  expect_error("compile ssm_pack_fwd" + source, 2, "a kernel of conv1d_pack_fwd; needed: ssm_pack_fwd");
  EXPECT_EQ(packjit("generate conv1d_pack_fwd --target host -o " + folder.quoted("host.cu")).status, 0);
  expect_error("compile conv1d_pack_fwd --source " + folder.quoted("host.cu"), 2, "without --target host");
}

TEST(Compile, AFailureLeavesTheOutputAsItWas) {
  const Folder folder;
  std::ofstream(folder.path / "kept.cubin") << "before";
  write_edited(folder, "edited.cu", "nonsense");
  expect_error("compile conv1d_pack_fwd --arch sm_90 --source " + folder.quoted("edited.cu") + " -o " +
                   folder.quoted("kept.cubin"),
               2, "nonsense");
  EXPECT_EQ(read(folder.path / "kept.cubin"), "before");
}

TEST(Compile, AnOutputDoesNotReplaceTheSource) {
  const Folder folder;
  const std::string source = packjit("generate conv1d_pack_fwd").text;
  for (const char* name : {"kernel.ptx", "conv1d_pack_fwd.sm_90.ptx"}) std::ofstream(folder.path / name) << source;
  fs::create_symlink("kernel.ptx", folder.path / "link");
  const std::string compile = "compile conv1d_pack_fwd --arch sm_90 --source ";
  expect_error(compile + folder.quoted("kernel.ptx") + " --bundle " + folder.quoted("link"), 2,
               "--source and --bundle are the same file");
  expect_error(compile + folder.quoted("link") + " -o " + folder.quoted("kernel.ptx"), 2,
               "--source and -o are the same file");
  expect_error(compile + folder.quoted("conv1d_pack_fwd.sm_90.ptx") + " -o " + folder.quoted(""), 2,
               "conv1d_pack_fwd.sm_90.ptx', of which only one would be left");
  for (const char* name : {"kernel.ptx", "conv1d_pack_fwd.sm_90.ptx"}) EXPECT_EQ(read(folder.path / name), source);
  // Nor one output another, whether it is there yet or not.
  for (const char* name : {"new.ptx", "kernel.ptx"}) {
    expect_error("compile conv1d_pack_fwd --arch sm_90 -o " + folder.quoted(name) + " --bundle " + folder.quoted(name),
                 2, "--bundle and -o are the same file");
  }
  EXPECT_FALSE(fs::exists(folder.path / "new.ptx"));
}

TEST(Compile, RefusesBadArchitecturesAndOutputs) {
  expect_error("compile conv1d_pack_fwd --arch sm_1", 2, "sm_90");
  expect_error("compile conv1d_pack_fwd --arch sm_90,", 2, "separated by commas");
  expect_error("compile conv1d_pack_fwd --arch all,sm_90", 2, "'all' stands alone");
  for (const char* command : {"compile", "inspect", "generate"}) {
    expect_error(std::string(command) + " conv1d_pack_fwd --arch ''", 2, "an architecture such as sm_90");
  }
  for (const char* command : {"inspect", "generate"}) {
    expect_error(std::string(command) + " conv1d_pack_fwd --arch sm_50", 2, "expected one of sm_75, ");
    expect_error(std::string(command) + " conv1d_pack_fwd --arch sm_90,sm_80", 2, "expected one architecture");
  }
  expect_error("compile conv1d_pack_fwd --arch sm_90,sm_80 -o both.cubin", 2, "2 architectures");
  expect_error("compile conv1d_pack_fwd --arch sm_90 -o image.elf", 2, ".cubin or .ptx");
  expect_error("compile conv1d_pack_fwd --arch sm_90", 3, "/no/libnvrtc.so", "PACKJIT_NVRTC=/no/libnvrtc.so");
}

TEST(Compile, RefusesABlockThatNoMultiprocessorHolds) {
  for (const char* command : {"compile", "inspect"}) {
    expect_error(std::string(command) + " ssm_pack_bwd --arch sm_75 --set block=1024", 2,
                 " cannot be launched on sm_75: a block needs ");
  }
}

TEST(Inspect, ShowsResourcesConfigAndWhy) {
  const Outcome outcome = packjit("inspect conv1d_pack_fwd --arch sm_90 --set block=64");
  EXPECT_EQ(outcome.status, 0);
  for (const char* words :
       {"registers", "spills", "shared memory", "occupancy", "64 threads", "--set", "built-in default"}) {
    EXPECT_NE(outcome.text.find(words), std::string::npos) << words << "\n" << outcome.text;
  }
  const auto json = json_of("inspect conv1d_pack_fwd --arch sm_90 --set block=64 --ptx --json");
  EXPECT_EQ(json["config"]["block"], "64");
  EXPECT_EQ(json["config_why"]["block"], "--set");
  EXPECT_EQ(json["config_why"]["tile_tokens"], "built-in default");
  EXPECT_NE(json["ptx"].get<std::string>().find(".target sm_90"), std::string::npos);
  EXPECT_FALSE(json.contains("source"));
}

TEST(Inspect, ShowsTheConfigThatAShapeGetsAsExplainDoes) {
  const std::string shape = "ssm_pack_fwd --arch sm_90 --dim 64 --tokens 20000 --sequences 1 --longest 20000";
  const auto explained = json_of("explain " + shape + " --json");
  const auto inspected = json_of("inspect " + shape + " --json");
  EXPECT_EQ(inspected["config"], explained["config"]);
  EXPECT_EQ(inspected["config_origin"],
            explained["outcome"].get<std::string>() + ": " + explained["origin"].get<std::string>());
  EXPECT_EQ(inspected["config_why"]["block"], "looked up");
  // The built-in one for much work has no segments; one long sequence alone gets them.
  EXPECT_EQ(inspected["config"]["segments"], "on");
  const auto built_in = json_of("inspect ssm_pack_fwd --arch sm_90 --json");
  EXPECT_EQ(built_in["config"]["segments"], "off");
  EXPECT_TRUE(built_in["config_origin"].is_null());
  expect_error("inspect " + shape + " --set tile_tokens=0", 2, "tile_tokens");
}

// The product of 2^40 tokens and 2^24 channels is 0 in 64 bits, which was taken for no work at all.
TEST(Explain, ElementsBeyond64BitsAreRefused) {
  const std::string question = "explain conv1d_pack_fwd --arch sm_90 --tokens 1099511627776 --dim ";
  expect_error(question + "16777216", 2, "--dim: Value 16777216 not in range 1 to 4194304");
  EXPECT_EQ(json_of(question + "4194304 --json")["config"]["vector"], "8");  // as where there is much work
}

TEST(Inspect, CountsTheConfigsToChooseFrom) {
  const std::string text = packjit("inspect conv1d_pack_fwd --arch sm_90").text;
  EXPECT_NE(text.find("search space: 480 valid Configs on sm_90\n"), std::string::npos) << text;
  const auto json = json_of("inspect conv1d_pack_fwd --arch sm_90 --dtype fp32 --json");
  EXPECT_EQ(json["search_space"], 240);  // no accesses of 8 elements
}

TEST(Inspect, PrintsTheSourceThatGeneratePrintsWithoutNvrtc) {
  EXPECT_EQ(packjit("inspect conv1d_pack_fwd --arch sm_90 --source", "PACKJIT_NVRTC=/no/libnvrtc.so").text,
            packjit("generate conv1d_pack_fwd --arch sm_90").text);
  expect_error("inspect conv1d_pack_fwd --source --ptx", 2, "give one");
}

TEST(Verify, RefusesOptionsThatWouldBeIgnored) {
  const Folder folder;
  const std::string file = folder.quoted("case.json");
  for (const char* option : {"--rows 3", "--dim 8", "--pack-length 64"}) {
    expect_error(std::string("verify --device host ") + option, 2, "--lengths");
  }
  expect_error("verify --device host --case " + file + " --dim 8 --lengths x", 2, "--case");
  expect_error("verify --device host --quick --case " + file, 2, "--case");
  std::ofstream(folder.path / "case.json") << R"({"op": "conv1d_pack_fwd", "rows": [[3]], "dim": 2, "dim": 3})";
  expect_error("verify --device host --case " + file, 2, "case.json: reading a case: field \"dim\" is given twice");
  std::ofstream(folder.path / "case.json") << R"({"op": )";
  expect_error("verify --device host --case " + file, 2, "case.json: reading a case: not JSON: parse error at line 1");
}

TEST(Verify, SaysWhyACaseCannotBeRead) {
  expect_error(
      "verify --device host --case no/case.json", 2,
      "cannot read the case 'no/case.json': No such file or directory; give a file as docs/case_format.md has");
  expect_error("verify --device host --case /", 2, "cannot read the case '/': Is a directory; give a file");
}

TEST(Doctor, ReportsWhatIsMissingAndStillSucceeds) {
  const auto found = json_of("doctor --json");
  EXPECT_TRUE(found["nvrtc"]["usable"]);
  EXPECT_TRUE(found["can"]["compile"]);
  const auto missing = json_of("doctor --json", "PACKJIT_NVRTC=/no/libnvrtc.so PACKJIT_HOST_COMPILER=/no/compiler");
  EXPECT_FALSE(missing["nvrtc"]["usable"]);
  EXPECT_FALSE(missing["can"]["compile"]);
  EXPECT_FALSE(missing["can"]["run_on_host"]);
  EXPECT_NE(missing["nvrtc"]["problem"].get<std::string>().find("nvidia-cuda-nvrtc"), std::string::npos);
  const Outcome text = packjit("doctor", "PACKJIT_NVRTC=/no/libnvrtc.so");
  EXPECT_EQ(text.status, 0);
  EXPECT_NE(text.text.find("What is missing, and what to do"), std::string::npos);
}

TEST(BenchHost, CompilesAndMeasuresSizeWithoutAGpu) {
  const auto report = json_of("bench host --only compile --only size --arch sm_80 --json");
  EXPECT_EQ(report["command"], "packjit bench host --only compile size --arch sm_80 --json");
  EXPECT_EQ(report["compile"]["arch"], "sm_80");
  ASSERT_EQ(report["compile"]["operators"].size(), 4U);
  EXPECT_EQ(report["compile"]["operators"][3]["operator"], "ssm_pack_bwd");
  for (const auto& one : report["compile"]["operators"]) EXPECT_GT(one["seconds"]["least"], 0.0);
  EXPECT_GT(report["compile"]["four_in_parallel_seconds"]["median"],
            report["compile"]["operators"][0]["seconds"]["least"]);
  EXPECT_EQ(report["size"]["file"], "libpackjit.so.0.1.0");
  EXPECT_GT(report["size"]["bytes"], 500'000);
  EXPECT_FALSE(report.contains("launch"));
  EXPECT_TRUE(report["missing"].empty());
}

TEST(BenchHost, NamesWhatIsMissingOrWrong) {
  expect_error("bench host --only compile", 3, "PACKJIT_NVRTC", "PACKJIT_NVRTC=/no/libnvrtc.so");
  expect_error("bench host --only nonsense", 2, "nonsense");
  expect_error("bench host --calls 0", 2, "--repeats 10 and --calls 0 must both be at least 1");
  expect_error("bench host --only compile --arch sm_1", 2, "sm_1");
}

}  // namespace
