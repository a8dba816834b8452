#include "api/self_check.hpp"

#include "checking/self_check.hpp"
#include "runtime/compile_cache.hpp"
#include "runtime/log.hpp"
#include "runtime/settings.hpp"

namespace packjit::api {

SelfCheck self_check() {
  std::string problem;
  const bool wanted = self_check_setting(problem);
  if (!problem.empty()) write_log({LogLevel::warning, problem, {}});
  if (!wanted) return {};
  return {checking::self_check, [](const CheckRecord& record) { return CompileCache::shared().has_passed(record); },
          [](const CheckRecord& record) { CompileCache::shared().remember(record); }};
}

}  // namespace packjit::api
