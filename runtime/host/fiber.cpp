#include "runtime/host/fiber.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define PACKJIT_ADDRESS_SANITIZER 1
#elif defined(__SANITIZE_THREAD__)
#define PACKJIT_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PACKJIT_ADDRESS_SANITIZER 1
#elif __has_feature(thread_sanitizer)
#define PACKJIT_THREAD_SANITIZER 1
#endif
#endif

#if defined(PACKJIT_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(PACKJIT_THREAD_SANITIZER)
#include <sanitizer/tsan_interface.h>
#endif

namespace packjit::host {
namespace {

#if defined(PACKJIT_ADDRESS_SANITIZER) || defined(PACKJIT_THREAD_SANITIZER)
constexpr std::size_t kStackBytes = std::size_t{256} * 1024;  // instrumented frames are larger
#else
constexpr std::size_t kStackBytes = std::size_t{128} * 1024;
#endif
// Stacks lie at equal distances; without an offset their hot ends would all compete for the same few cache sets.
constexpr std::size_t kColours = 64;
constexpr std::size_t kColourBytes = 256;

// Boost's stack allocators would do, but bring std::call_once, compiled to take thread-local storage that a process has
// no room for once it has loaded as much as PyTorch: libpackjit could not be loaded then.
std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

/// kStackBytes above a page that stops what runs over.
boost::context::stack_context map_stack() {
  const std::size_t page = page_bytes();
  void* low = mmap(nullptr, page + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (low == MAP_FAILED) throw std::bad_alloc();
  mprotect(low, page, PROT_NONE);
  boost::context::stack_context stack;
  stack.size = kStackBytes;
  stack.sp = static_cast<char*>(low) + page + kStackBytes;
  return stack;
}

void unmap_stack(const boost::context::stack_context& stack) {
  const std::size_t page = page_bytes();
  munmap(static_cast<char*>(stack.sp) - stack.size - page, page + stack.size);
}

/// The group owns the stacks; the library must not free them.
struct KeepStack {
  void deallocate(boost::context::stack_context&) noexcept {}
};

}  // namespace

struct Fiber::Context {
  Context() = default;
  ~Context() {
    if (stack.sp == nullptr) return;
#if defined(PACKJIT_ADDRESS_SANITIZER)
    // The address range is given back with frames still marked on it.
    __asan_unpoison_memory_region(bottom, size);
#elif defined(PACKJIT_THREAD_SANITIZER)
    __tsan_destroy_fiber(sanitizer_fiber);
#endif
    unmap_stack(stack);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Never destroyed: its destructor would unwind the stack by an exception. Idle fibers hold nothing to unwind.
  union {
    boost::context::fiber resume_point{};
  };
  boost::context::stack_context stack;
  [[maybe_unused]] const void* bottom = nullptr;
  [[maybe_unused]] std::size_t size = 0;
  [[maybe_unused]] void* sanitizer_fiber = nullptr;  ///< thread sanitizer's handle, or address sanitizer's fake stack
};

Fiber::Fiber(std::unique_ptr<Context> context) : context_(std::move(context)) {}
Fiber::~Fiber() = default;

FiberGroup::FiberGroup(void (*body)(void*, Fiber&), void* owner)
    : body_(body), owner_(owner), outside_(std::make_unique<Fiber::Context>()) {}
FiberGroup::~FiberGroup() = default;

Fiber& FiberGroup::take() {
  if (idle_.empty()) create();
  Fiber* fiber = idle_.back();
  idle_.pop_back();
  return *fiber;
}

void FiberGroup::create() {
  all_.reserve(all_.size() + 1);
  idle_.reserve(all_.size() + 1);  // so that put_back cannot fail
  auto context = std::make_unique<Fiber::Context>();
  context->stack = map_stack();
  context->size = context->stack.size;
  context->bottom = static_cast<char*>(context->stack.sp) - context->stack.size;
  auto fiber = std::unique_ptr<Fiber>(new Fiber(std::move(context)));

  Fiber::Context& made = *fiber->context_;
  const std::size_t offset = all_.size() % kColours * kColourBytes;
  const boost::context::preallocated place(static_cast<char*>(made.stack.sp) - offset, made.stack.size - offset,
                                           made.stack);
  auto run = [this, self = fiber.get()](boost::context::fiber&& from) -> boost::context::fiber {
    previous_->resume_point = std::move(from);
    arrived();
    body_(owner_, *self);
    return {};
  };
#if defined(PACKJIT_THREAD_SANITIZER)
  // The constructor runs the first instructions of the fiber; they must count as the fiber's.
  made.sanitizer_fiber = __tsan_create_fiber(0);
  void* creator = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(made.sanitizer_fiber, 0);
#endif
  made.resume_point = boost::context::fiber(std::allocator_arg, place, KeepStack(), std::move(run));
#if defined(PACKJIT_THREAD_SANITIZER)
  __tsan_switch_to_fiber(creator, 0);
#endif
  idle_.push_back(fiber.get());
  all_.push_back(std::move(fiber));
}

void FiberGroup::enter(Fiber& fiber) {
  current_ = outside_.get();
#if defined(PACKJIT_THREAD_SANITIZER)
  outside_->sanitizer_fiber = __tsan_get_current_fiber();
#endif
  change(*fiber.context_);
}

void FiberGroup::leave() { change(*outside_); }

void FiberGroup::switch_to(Fiber& fiber) { change(*fiber.context_); }

void FiberGroup::change(Fiber::Context& target) {
  previous_ = current_;
  current_ = &target;
#if defined(PACKJIT_ADDRESS_SANITIZER)
  __sanitizer_start_switch_fiber(&previous_->sanitizer_fiber, target.bottom, target.size);
#elif defined(PACKJIT_THREAD_SANITIZER)
  __tsan_switch_to_fiber(target.sanitizer_fiber, 0);
#endif
  boost::context::fiber from = std::move(target.resume_point).resume();
  // Here again, perhaps long after: somebody continued this stack, and previous_ is that somebody.
  previous_->resume_point = std::move(from);
  arrived();
}

void FiberGroup::arrived() {
#if defined(PACKJIT_ADDRESS_SANITIZER)
  __sanitizer_finish_switch_fiber(current_->sanitizer_fiber, &previous_->bottom, &previous_->size);
#endif
}

}  // namespace packjit::host
