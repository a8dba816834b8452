// Finding and running the host compiler; loading what it made; one compile for each source.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "runtime/errors.hpp"
#include "runtime/host/child_process.hpp"
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

TEST(HostCompiler, CompilerThatCannotRunIsTheEnvironment) {
  const auto message_with = [](const char* compiler) {
    const Setting setting("PACKJIT_HOST_COMPILER", compiler);
    const auto device = open_host_device();
    return message_of<EnvironmentError>([&] { (void)device->load_text(constant_kernel("3")); });
  };
  const std::string dead = message_with("false");
  EXPECT_NE(dead.find("ended with status 1 and said nothing; install one"), std::string::npos) << dead;
  EXPECT_EQ(dead.find("source:"), std::string::npos) << dead;
  const std::string idle = message_with("true");
  EXPECT_NE(idle.find("wrote no output"), std::string::npos) << idle;
}

// A compiler that rejects what packjit prints does not fit; the user cannot mend the source.
TEST(HostCompiler, GeneratedSourceThatFailsIsTheEnvironment) {
  const host::PrivateDirectory directory;
  const std::string compiler = directory.path() + "/old compiler";
  std::ofstream(compiler) << "#!/bin/sh\necho 'kernel.cpp:1:1: error: too new' >&2\nexit 1\n";
  std::filesystem::permissions(compiler, std::filesystem::perms::owner_all);
  const Setting setting("PACKJIT_HOST_COMPILER", compiler.c_str());
  const auto device = open_host_device();
  const Spec spec(Operator::conv1d_pack_fwd);
  const auto message = message_of<EnvironmentError>([&] { (void)device->load(spec, Config(spec.op)); });
  EXPECT_NE(message.find("too new"), std::string::npos) << message;
  EXPECT_NE(message.find("probably too old"), std::string::npos) << message;
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

/// Lets SIGCHLD do something else until the end.
class ChildSignal {
 public:
  explicit ChildSignal(void (*action)(int)) : old_(std::signal(SIGCHLD, action)) {}
  ~ChildSignal() { std::signal(SIGCHLD, old_); }

 private:
  void (*old_)(int);
};

TEST(HostCompiler, RunsWhereTheApplicationIgnoresTheEndOfChildren) {
  const ChildSignal ignored(SIG_IGN);
  const auto device = open_host_device();
  EXPECT_EQ(run_kernel<int>(*device, constant_kernel("4711"), {.entry = "constant"}, 1)[0], 4711);
  EXPECT_EQ(host::run_program({"/bin/false"}).status, 1);
}

TEST(HostCompiler, RunsWhereTheApplicationWaitsForAnyChild) {
  const ChildSignal reaping([](int) {
    const int before = errno;
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    errno = before;
  });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(host::run_program({"/bin/false"}).status, 1);
}

TEST(ChildProcess, GivesTheArgumentsOnAsTheyAreAndSaysHowItEnded) {
  const host::ChildResult said = host::run_program({"/usr/bin/printf", "%s|%s|%s", "a b", "$HOME '\"`", ""});
  EXPECT_EQ(said.output, "a b|$HOME '\"`|");
  EXPECT_EQ(said.status, 0);
  EXPECT_EQ(host::run_program({"/bin/sh", "-c", "printf 'one\n' >&2; exit 7"}).status, 7);
  EXPECT_EQ(host::run_program({"/bin/sh", "-c", "printf 'one\n' >&2"}).output, "one\n");
  EXPECT_EQ(host::run_program({"/bin/sh", "-c", "kill -9 $$"}).status, 128 + 9);
  EXPECT_THROW((void)host::run_program({"/no/such/program"}), std::system_error);
}

TEST(ChildProcess, WhatAProgramLeavesBehindMayPrintLater) {
  const host::ChildResult said = host::run_program({"/bin/sh", "-c", "(sleep 0.2; echo late) & echo early; exit 5"});
  EXPECT_EQ(said.output, "early\nlate\n");
  EXPECT_EQ(said.status, 5);
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
