#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace packjit::host {

class FiberGroup;

/// A stack of its own that can be left in the middle of a computation and continued later. Made and owned by a
/// FiberGroup.
struct Fiber {
  void* task =
      nullptr;  ///< what the group's body should work on next; set by the user before switching to an idle fiber

 private:
  friend class FiberGroup;
  struct Context;
  explicit Fiber(std::unique_ptr<Context> context);

 public:
  ~Fiber();

 private:
  std::unique_ptr<Context> context_;
};

/// Fibers that switch among each other on one operating-system thread, with protected stacks that are reused.
///
/// Every fiber runs the same endless body. A group may move to another operating-system thread while no fiber runs.
/// Address and thread sanitizers are told about every switch when they are compiled in.
class FiberGroup {
 public:
  /// `body(owner, self)` must never return and must never let an exception out. It holds only trivially destructible
  /// objects while the fiber is idle, since the stack of an idle fiber is dropped without unwinding.
  FiberGroup(void (*body)(void* owner, Fiber& self), void* owner);
  ~FiberGroup();
  FiberGroup(const FiberGroup&) = delete;
  FiberGroup& operator=(const FiberGroup&) = delete;

  /// An idle fiber: one that was put back, or a new one. Throws std::bad_alloc when there is no memory for a stack.
  [[nodiscard]] Fiber& take();
  /// Marks a fiber as idle. Its body must switch away before anybody takes it again.
  void put_back(Fiber& fiber) { idle_.push_back(&fiber); }

  /// From the operating-system thread's own stack: runs `fiber` until some fiber calls leave().
  void enter(Fiber& fiber);
  /// From a fiber: continues the caller of enter().
  void leave();
  /// From a fiber: continues `fiber`; returns when somebody continues the caller.
  void switch_to(Fiber& fiber);

 private:
  struct Stack;
  void create();
  void change(Fiber::Context& target);
  void arrived();

  void (*body_)(void*, Fiber&);
  void* owner_;
  std::unique_ptr<Fiber::Context> outside_;
  Fiber::Context* current_ = nullptr;
  Fiber::Context* previous_ = nullptr;  ///< who switched to the current one
  std::vector<std::unique_ptr<Fiber>> all_;
  std::vector<Fiber*> idle_;
};

}  // namespace packjit::host
