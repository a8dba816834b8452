// What new totals of tokens cost after warm-up: with a driver that runs nothing, and the real look-up and compile
// cache.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <span>
#include <stdexcept>

#include "api/handles.hpp"
#include "database/bucket.hpp"
#include "runtime/compile_cache.hpp"
#include "tests/api/calls.hpp"
#include "tests/api/fake_driver.hpp"
#include "tests/api/handles.hpp"
#include "tests/cache/cache_helpers.hpp"

namespace packjit::testing {
namespace {

namespace fs = std::filesystem;

void* const kStream = reinterpret_cast<void*>(0x1000);  // NOLINT(performance-no-int-to-ptr)
constexpr std::int64_t kDim = 2048;
constexpr int kBatches = 1000;

/// Sizes and limits of a batch.
struct Totals {
  std::int64_t batch, seqlen, max_sequences, max_seqlen;
};

/// Both operators on one device, the compile cache behind it, and its folder and that of the tuning databases, both
/// empty at first.
class Process {
 public:
  explicit Process(const fs::path& folder)
      : cache_(compiler.compiler(), test::open_disk(posix_file_system(), records, system_clock(), folder / "cache"),
               records.callback()),
        device_(new packjit_device(api::cuda_backend(
            fake.driver(), 0,
            [this](const Source& source, const std::string& arch) { return cache_.get(source, arch).result; }))),
        conv_(make_operator(device_, options(PACKJIT_CONV1D_PACK))),
        scan_(make_operator(device_, options(PACKJIT_SSM_PACK))) {}

  /// Prepares the batch and runs it once.
  void warm_up(const Totals& totals) {
    const packjit_shape shape = shape_of(totals);
    for (packjit_operator* op : {conv_.get(), scan_.get()}) {
      expect_done(packjit_operator_prepare(op, kStream, PACKJIT_FORWARD + PACKJIT_BACKWARD, &shape));
    }
    run(totals);
  }

  /// Builds the map, then forward and backward of both operators.
  void run(const Totals& totals) {
    const packjit_map_options options{sizeof(options), PACKJIT_POSITION_INDICES, PACKJIT_POSITIONS, totals.batch,
                                      totals.seqlen,   totals.max_sequences,     totals.max_seqlen};
    packjit_map* made = nullptr;
    expect_done(packjit_map_create(device_.get(), kStream, &options, PACKJIT_INT32, &made));
    const MapHandle map(made);
    const packjit_tensor boundaries = tensor(memory, PACKJIT_INT32, {totals.batch, totals.seqlen});
    expect_done(packjit_map_build(made, kStream, &boundaries));
    for (const Operator op :
         {Operator::conv1d_pack_fwd, Operator::ssm_pack_fwd, Operator::ssm_pack_bwd, Operator::conv1d_pack_bwd}) {
      call(op, totals, made);
    }
  }

  FakeDriver fake;
  test::Records records;
  test::CountingCompiler compiler;
  int calls = 0;  ///< of the C interface
  std::string failure;

 private:
  static packjit_operator_options options(std::int32_t op) {
    packjit_operator_options made{};
    made.op = op;
    return made;
  }
  static packjit_shape shape_of(const Totals& totals) {
    return {sizeof(packjit_shape), totals.batch,      totals.seqlen,       kDim, 1,
            totals.max_sequences,  totals.max_seqlen, PACKJIT_TOKEN_MAJOR, 1};
  }
  void expect_done(packjit_status status) {
    ++calls;
    if (status != PACKJIT_OK && failure.empty()) failure = packjit_last_error();
  }
  void call(Operator op, const Totals& totals, const packjit_map* map) {
    packjit_operator* handle = is_scan(op) ? scan_.get() : conv_.get();
    const packjit_shape shape = shape_of(totals);
    std::map<std::string, packjit_tensor> tensors;
    char* place = memory;  // never read or written
    const auto get = [&](const char* name) -> const packjit_tensor* {
      packjit_tensor made{};
      made.struct_size = sizeof(made);
      const std::int32_t direction = is_backward(op) ? PACKJIT_BACKWARD : PACKJIT_FORWARD;
      if (packjit_operator_describe(handle, direction, &shape, name, &made) != PACKJIT_OK) return nullptr;
      made.data = place;
      place += kApart;
      return &tensors.emplace(name, made).first->second;
    };
    const packjit_workspace workspace{sizeof(workspace), memory, std::size_t{1} << 50U};
    expect_done(call_operator(op, handle, kStream, map, get, &workspace));
  }

  static constexpr std::size_t kApart = 256;
  alignas(kApart) static inline char memory[24 * kApart];
  CompileCache cache_;
  DeviceHandle device_;
  OperatorHandle conv_, scan_;
};

/// What an application prepares that does not know its totals: a batch of each bucket of both operators, and one for
/// each Config that a scan has where nothing was tuned (long sequences cut or not, little work or much).
std::vector<Totals> for_warm_up() {
  std::vector<Totals> all = {{1, 4096, 1, 4096}, {1, 65'536, 1, 65'536}, {1, 4096, 16, 512}, {1, 65'536, 128, 1024}};
  for (const Operator op : {Operator::conv1d_pack_fwd, Operator::ssm_pack_fwd}) {
    for (const Bucket& bucket : buckets_to_tune(op, kDim)) {
      const Workload work = representative(op, bucket);
      all.push_back({1, work.tokens, work.sequences, work.longest});
    }
  }
  return all;
}

/// Totals from 1 to about 4,000,000 tokens, every doubling as likely; as many sequences, and as long ones, as fit.
std::vector<Totals> random_totals() {
  std::mt19937 random(11);
  const auto between = [&](std::int64_t least, std::int64_t most) {
    const double drawn = std::uniform_real_distribution<double>(std::log(static_cast<double>(least)),
                                                                std::log(static_cast<double>(most) + 1))(random);
    return std::clamp(static_cast<std::int64_t>(std::exp(drawn)), least, most);
  };
  std::vector<Totals> all;
  for (int i = 0; i < kBatches; ++i) {
    Totals totals{between(1, 16), between(1, 262'144), 0, 0};
    totals.max_seqlen = between(1, totals.seqlen);
    const std::int64_t tokens = totals.batch * totals.seqlen;
    totals.max_sequences = between((tokens + totals.max_seqlen - 1) / totals.max_seqlen, tokens);
    all.push_back(totals);
  }
  return all;
}

class RandomTotals : public ::testing::Test {
 public:
  RandomTotals() {
    std::string name = ::testing::TempDir() + "packjit-totals-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    folder = name;
    // Read at the process's first question, so that it holds where this test is the first.
    setenv("PACKJIT_DATABASE_DIR", name.c_str(), 1);
  }
  ~RandomTotals() override {
    unsetenv("PACKJIT_DATABASE_DIR");
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
  RandomTotals(const RandomTotals&) = delete;
  RandomTotals& operator=(const RandomTotals&) = delete;
  fs::path folder;
};

TEST_F(RandomTotals, K40_CompileNothingAfterWarmUp) {
  const std::vector<Totals> batches = random_totals();
  std::set<std::int64_t> distinct;
  for (const Totals& totals : batches) distinct.insert(totals.batch * totals.seqlen);
  EXPECT_GE(distinct.size(), 700U);
  Process process(folder);
  for (const Totals& totals : for_warm_up()) process.warm_up(totals);
  ASSERT_EQ(process.failure, "");
  const int compiled = process.compiler.count;
  const std::size_t events = process.records.events().size();
  const int loaded = process.fake.counts().modules_loaded, launches = process.fake.counts().launches;
  for (const Totals& totals : batches) process.run(totals);
  EXPECT_EQ(process.failure, "");
  EXPECT_EQ(process.compiler.count, compiled);
  EXPECT_EQ(process.fake.counts().modules_loaded, loaded);
  const std::vector<KernelEvent> all = process.records.events();
  for (const KernelEvent& event : std::span(all).subspan(events)) EXPECT_EQ(event.how, HitKind::memory) << event.key;
  EXPECT_GE(process.fake.counts().launches - launches, 5 * kBatches);  // a map's kernels and four operators'
  EXPECT_TRUE(process.records.warnings().empty());
}

TEST_F(RandomTotals, K40_WithoutWarmUpTheyCompileABoundedNumberOfKernels) {
  // So the batches of the test above do ask for different kernels.
  Process cold(folder);
  for (const Totals& totals : random_totals()) cold.run(totals);
  EXPECT_EQ(cold.failure, "");
  EXPECT_GE(cold.compiler.count, 15);
  EXPECT_LE(cold.compiler.count, 1 + 2 * 17 + 2 * (4 + 17));  // the map's, a convolution's, a scan's
}

#if !defined(PACKJIT_SANITIZE)  // sanitizers make system calls of their own

volatile std::sig_atomic_t trapped = 0;

/// From here on every system call that opens, reads, writes, looks up or changes a file, or starts a program, is
/// counted and not made. False where filters are not to be had.
bool trap_file_access() {
  constexpr int kTrapped[] = {
#if defined(SYS_open)
    SYS_open,
    SYS_creat,
    SYS_stat,
    SYS_lstat,
    SYS_access,
    SYS_readlink,
    SYS_rename,
    SYS_unlink,
    SYS_mkdir,
    SYS_rmdir,
    SYS_link,
    SYS_fork,
    SYS_vfork,
#endif
    SYS_openat,
    SYS_newfstatat,
    SYS_statx,
    SYS_fstat,
    SYS_faccessat,
    SYS_readlinkat,
    SYS_renameat2,
    SYS_renameat,
    SYS_unlinkat,
    SYS_mkdirat,
    SYS_linkat,
    SYS_getdents64,
    SYS_read,
    SYS_pread64,
    SYS_readv,
    SYS_write,
    SYS_pwrite64,
    SYS_writev,
    SYS_fsync,
    SYS_fdatasync,
    SYS_ftruncate,
    SYS_flock,
    SYS_utimensat,
    SYS_execve,
    SYS_execveat
  };
  std::vector<sock_filter> program = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const int number : kTrapped) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  struct sigaction action {};
  action.sa_handler = [](int) { trapped = trapped + 1; };
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return sigaction(SIGSYS, &action, nullptr) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST_F(RandomTotals, K49_TouchNoFileAfterWarmUp) {
  const std::vector<Totals> batches = random_totals();
  const pid_t child = fork();
  if (child == 0) {
    constexpr int kNoFilter = 77;
    Process process(folder);
    for (const Totals& totals : for_warm_up()) process.warm_up(totals);
    if (!trap_file_access()) _exit(kNoFilter);
    for (const Totals& totals : batches) process.run(totals);
    if (trapped != 0) _exit(1);
    if (!process.failure.empty() || process.compiler.count == 0 || process.calls < 6 * kBatches) _exit(2);
    syscall(SYS_openat, -1, "/dev/null", 0);
    _exit(trapped == 1 ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "seccomp is not to be had here";
  EXPECT_TRUE(WIFEXITED(status)) << "ended with " << status;
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: a file was touched; 2: a call failed; 3: the filter sees nothing";
  // What was compiled is on the disk, so there was something to look into.
  EXPECT_FALSE(fs::is_empty(folder / "cache"));
}

#endif

}  // namespace
}  // namespace packjit::testing
