#pragma once

#include <future>
#include <memory>
#include <string>

#include "api/backend.hpp"
#include "api/map.hpp"
#include "api/operators_by_tensors.hpp"
#include "api/packed_operator.hpp"
#include "api/packer.hpp"
#include "api/status.hpp"
#include "api/workers.hpp"

// What stands behind the opaque types of the C interface.

struct packjit_device {
  explicit packjit_device(std::unique_ptr<packjit::api::Backend> place)
      : backend(std::move(place)), operators(*backend) {}
  std::unique_ptr<packjit::api::Backend> backend;
  packjit::api::OperatorsByTensors operators;
  packjit::api::Workers workers;  // ends first: it may be preparing
};

struct packjit_map {
  packjit_device& device;
  std::unique_ptr<packjit::api::Map> map;
};

struct packjit_operator {
  packjit_device& device;
  std::shared_ptr<packjit::api::PackedOperator> op;  // shared with preparations under way
};

struct packjit_task {
  std::shared_future<packjit::api::Outcome> outcome;
  unsigned forks;  // as many were seen when it began: a process forked since then has no thread that does it
};

struct packjit_packer {
  packjit::api::Packer packer;
};
