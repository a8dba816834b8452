// Guard zones round device buffers and shared memory, and the range checks of copies.
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>

#include "runtime/errors.hpp"
#include "tests/host/host_source.hpp"

namespace packjit::test {
namespace {

std::string text() {
  return host_source(
      R"(
struct Argument { char* out; int n; };
void fill_exactly(Argument a) { for (int i = 0; i < a.n; ++i) a.out[i] = 1; }
void one_before(Argument a) { a.out[-1] = 0; }
void one_past(Argument a) { a.out[a.n] = 0; }
void shared_exactly(Argument a) { for (int i = 0; i < 100; ++i) shared_memory()[i] = 0; }
void shared_before(Argument a) { if (blockIdx.y == 1) shared_memory()[-1] = 0; }
void shared_past(Argument a) { if (blockIdx.y == 1) shared_memory()[100] = 0; }
void shared_at_start(Argument a) {
  a.out[blockIdx.x] = shared_memory()[99];
  shared_memory()[99] = 0;
}
)",
      {"fill_exactly", "one_before", "one_past", "shared_exactly", "shared_before", "shared_past", "shared_at_start"});
}

std::string failure(const char* entry, std::size_t bytes) {
  const auto device = open_host_device();
  return message_of<CheckFailed>([&] {
    (void)run_kernel<char>(*device, text(), {.entry = entry, .grid_x = 2, .grid_y = 2, .shared_bytes = 100}, bytes);
  });
}

TEST(HostGuards, OneByteOutsideABufferIsCaught) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1000}, std::size_t{4096}}) {
    EXPECT_EQ(failure("fill_exactly", bytes), "nothing was thrown");
    const std::string size = std::to_string(bytes);
    EXPECT_EQ(failure("one_before", bytes), "guard zone damaged: a write before the start of a buffer of " + size +
                                                " bytes, at offset -1, first seen after kernel one_before");
    EXPECT_EQ(failure("one_past", bytes), "guard zone damaged: a write past the end of a buffer of " + size +
                                              " bytes, at offset " + size + ", first seen after kernel one_past");
  }
}

TEST(HostGuards, OneByteOutsideSharedMemoryIsCaught) {
  EXPECT_EQ(failure("shared_exactly", 8), "nothing was thrown");
  EXPECT_EQ(failure("shared_before", 8),
            "host execution of kernel shared_before, block (0, 1): wrote 1 bytes before the "
            "start of its 100 bytes of shared memory");
  EXPECT_EQ(failure("shared_past", 8),
            "host execution of kernel shared_past, block (0, 1): wrote 1 bytes past the end of "
            "its 100 bytes of shared memory");
}

TEST(HostGuards, SharedMemoryIsPoisonedBeforeEachBlock) {
  const auto device = open_host_device();
  const auto out = run_kernel<unsigned char>(
      *device, text(), {.entry = "shared_at_start", .grid_x = 3, .block = 1, .shared_bytes = 100}, 3);
  EXPECT_EQ(out, (std::vector<unsigned char>{0xff, 0xff, 0xff}));
}

TEST(HostGuards, DamageIsReportedOnceAlsoAfterRelease) {
  const auto device = open_host_device();
  auto* memory = static_cast<char*>(device->allocate(10));
  memory[10] = 0;
  device->release(memory);
  EXPECT_THROW(device->check_guards(), CheckFailed);
  EXPECT_NO_THROW(device->check_guards());
}

TEST(HostGuards, FreshMemoryIsAlignedAndPoisoned) {
  const auto device = open_host_device();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{257}}) {
    void* memory = device->allocate(bytes);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 256, 0u);
    std::vector<unsigned char> content(bytes);
    device->read(content.data(), memory, bytes);
    EXPECT_EQ(content, std::vector<unsigned char>(bytes, 0xff));
    device->check_guards();
    device->release(memory);
  }
  EXPECT_NO_THROW(device->release(nullptr));
}

TEST(HostGuards, CopiesOutsideABufferAreRefused) {
  const auto device = open_host_device();
  char bytes[16] = {};
  auto* memory = static_cast<char*>(device->allocate(16));
  EXPECT_NO_THROW(device->write(memory + 8, bytes, 8));
  EXPECT_THROW(device->write(memory + 8, bytes, 9), std::invalid_argument);
  EXPECT_THROW(device->read(bytes, memory + 16, 1), std::invalid_argument);
  EXPECT_THROW(device->fill(bytes, 0, 1), std::invalid_argument);
  device->release(memory);
  EXPECT_THROW(device->fill(memory, 0, 1), std::invalid_argument);
}

}  // namespace
}  // namespace packjit::test
