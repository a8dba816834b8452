// The C interface: packing.
#include "api/c_struct.hpp"
#include "api/handles.hpp"
#include "api/packer.hpp"

using packjit::api::guarded;
using packjit::api::read_struct;
using packjit::api::require;
using packjit::api::write_struct;

extern "C" {

packjit_status packjit_packer_create(const packjit_packer_options* options, const packjit_documents* documents,
                                     packjit_packer** packer) {
  return guarded([&] {
    require(packer, "packjit_packer_create", "packer");
    *packer = nullptr;
    *packer = new packjit_packer{packjit::api::Packer(read_struct(options, "packjit_packer_options"),
                                                      read_struct(documents, "packjit_documents"))};
  });
}

void packjit_packer_release(packjit_packer* packer) { delete packer; }

packjit_status packjit_packer_next(packjit_packer* packer, packjit_step* step) {
  return guarded([&] {
    require(packer, "packjit_packer_next", "packer");
    packjit::api::check_result(step, "packjit_step");
    write_struct(step, packer->packer.next(), "packjit_step");
  });
}

packjit_status packjit_packer_get_position(const packjit_packer* packer, packjit_packer_position* position) {
  return guarded([&] {
    require(packer, "packjit_packer_get_position", "packer");
    write_struct(position, packer->packer.position(), "packjit_packer_position");
  });
}

packjit_status packjit_packer_resume(packjit_packer* packer, const packjit_packer_position* position) {
  return guarded([&] {
    require(packer, "packjit_packer_resume", "packer");
    packer->packer.resume(read_struct(position, "packjit_packer_position"));
  });
}

packjit_status packjit_packer_get_info(const packjit_packer* packer, packjit_packer_info* info) {
  return guarded([&] {
    require(packer, "packjit_packer_get_info", "packer");
    write_struct(info, packer->packer.info(), "packjit_packer_info");
  });
}

packjit_status packjit_packer_get_statistics(const packjit_packer* packer, packjit_packer_statistics* statistics) {
  return guarded([&] {
    require(packer, "packjit_packer_get_statistics", "packer");
    packjit::api::check_result(statistics, "packjit_packer_statistics");
    write_struct(statistics, packer->packer.statistics(), "packjit_packer_statistics");
  });
}

}  // extern "C"
