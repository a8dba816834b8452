#include "tuning/database_store.hpp"

#include <gtest/gtest.h>

#include "database/shipped.hpp"
#include "tests/cache/cache_helpers.hpp"
#include "tests/cache/fake_file_system.hpp"
#include "tuning/targets.hpp"

namespace packjit::test {
namespace {

TEST(DatabaseStore, WhatIsShippedIsInUseUntilTheUserHasTuned) {
  const Entry& shipped = shipped_databases().front().entries.front();
  const TuningTarget target{shipped.spec, shipped.bucket, shipped.measured, batch_of(shipped.measured)};
  FakeFileSystem files;
  Records records;
  DatabaseStore store(files, "/data", shipped.gpu, "versions", records.callback());
  EXPECT_FALSE(store.best(shipped.spec, shipped.bucket, shipped.gpu));
  EXPECT_EQ(store.in_use(target, shipped.gpu), shipped.config);
  Entry own = shipped;
  own.config.values.set("min_blocks", shipped.config.values["min_blocks"] + 1);
  store.add(own);
  EXPECT_EQ(store.in_use(target, shipped.gpu), own.config);
}

}  // namespace
}  // namespace packjit::test
