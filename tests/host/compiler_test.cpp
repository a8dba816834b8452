// Finding and running the host compiler; loading what it made; one compile for each source.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "runtime/errors.hpp"
#include "runtime/host/host_compiler.hpp"
#include "runtime/host/host_device.hpp"
#include "tests/host/host_source.hpp"

namespace packjit::test {
namespace {

/// Sets an environment variable and puts the old value back at the end.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) {
      old_ = old;
      existed_ = true;
    }
    setenv(name, value, 1);
  }
  ~Setting() { existed_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::string old_;
  bool existed_ = false;
};

std::string constant_kernel(const std::string& value) {
  return host_source("struct Argument { int* out; int n; };\nvoid constant(Argument a) { a.out[0] = " + value + "; }\n",
                     {"constant"});
}

TEST(HostCompiler, MissingCompilerSaysWhatToDo) {
  {
    const Setting setting("PACKJIT_HOST_COMPILER", "/no/such/compiler");
    const auto message = message_of<EnvironmentError>([] { (void)open_host_device(); });
    EXPECT_NE(message.find("\"/no/such/compiler\""), std::string::npos) << message;
    EXPECT_NE(message.find("set it to the path of g++"), std::string::npos) << message;
  }
#if !defined(PACKJIT_SANITIZE)
  const Setting own("PACKJIT_HOST_COMPILER", "");
  const Setting path("PATH", "/no/such/directory");
  const auto message = message_of<EnvironmentError>([] { (void)open_host_device(); });
  EXPECT_NE(message.find("none of c++, g++, clang++ is on PATH"), std::string::npos) << message;
#endif
}

TEST(HostCompiler, CompilerThatCannotRunIsNotAnInternalError) {
  const Setting setting("PACKJIT_HOST_COMPILER", "false");
  const auto device = open_host_device();
  EXPECT_THROW((void)device->load_text(constant_kernel("3")), host::HostCompileError);
}

TEST(HostCompiler, UnusableTemporaryDirectory) {
  const Setting setting("TMPDIR", "/no/such/directory");
  const auto device = open_host_device();
  const auto message = message_of<EnvironmentError>([&] { (void)device->load_text(constant_kernel("4")); });
  EXPECT_NE(message.find("set TMPDIR"), std::string::npos) << message;
}

TEST(HostCompiler, FailedCompileShowsTheLine) {
  const auto device = open_host_device();
  const std::string text = constant_kernel("no_such_function(7)");
  const auto line = static_cast<std::size_t>(std::count(
                        text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.find("no_such")), '\n')) +
                    1;
  const std::size_t before = host::host_compiles();
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      (void)device->load_text(text);
      FAIL() << "the source compiled";
    } catch (const host::HostCompileError& error) {
      ASSERT_EQ(error.source_lines.size(), 1u) << error.what();
      EXPECT_EQ(error.source_lines[0],
                std::to_string(line) + ": void constant(Argument a) { a.out[0] = no_such_function(7); }");
      EXPECT_NE(error.log.find("no_such_function"), std::string::npos);
      EXPECT_NE(std::find(error.options.begin(), error.options.end(), "-std=c++20"), error.options.end());
      EXPECT_NE(std::string(error.what()).find(error.source_lines[0]), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(host::host_compiles(), before + 2);  // a failure is not kept
}

TEST(HostCompiler, SourceThatIsNotHostFormIsRefused) {
  const auto device = open_host_device();
  const auto message =
      message_of<std::invalid_argument>([&] { (void)device->load_text("extern \"C\" void packjit_enter_x() {}\n"); });
  EXPECT_NE(message.find("not the host form"), std::string::npos) << message;
}

TEST(HostCompiler, OneCompileForAllDevicesAndThreads) {
  const std::string text = constant_kernel("1234");
  const std::size_t before = host::host_compiles();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto device = open_host_device();
      EXPECT_EQ(run_kernel<int>(*device, text, {.entry = "constant"}, 1)[0], 1234);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(host::host_compiles(), before + 1);
}

TEST(HostCompiler, SeveralSourcesAtOnce) {
  const std::vector<std::string> texts = {constant_kernel("11"), constant_kernel("22"), constant_kernel("33")};
  host::compile_texts(texts);
  const std::size_t before = host::host_compiles();
  const auto device = open_host_device();
  EXPECT_EQ(run_kernel<int>(*device, texts[0], {.entry = "constant"}, 1)[0], 11);
  EXPECT_EQ(run_kernel<int>(*device, texts[2], {.entry = "constant"}, 1)[0], 33);
  EXPECT_EQ(host::host_compiles(), before);
  const std::vector<std::string> bad = {constant_kernel("44"), constant_kernel("no_such_name")};
  EXPECT_THROW(host::compile_texts(bad), host::HostCompileError);
}

TEST(HostCompiler, TemporaryDirectoryIsRemoved) {
  std::string path;
  {
    const host::PrivateDirectory directory;
    path = directory.path();
    (void)host::compile_host_source(host::find_host_compiler(), host_primitives(), directory);
  }
  EXPECT_FALSE(std::ifstream(path + "/kernel.cpp").good());
}

}  // namespace
}  // namespace packjit::test
