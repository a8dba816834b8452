#pragma once

#include "generator/operators.hpp"

namespace packjit {

// Pieces that the field tables and constraints of both operators share.

inline constexpr std::string_view kDtypeLabels[] = {"fp32", "fp16", "bf16"};
inline constexpr std::string_view kSwitch[] = {"off", "on"};
inline constexpr std::string_view kLayoutLabels[] = {"token-major", "channel-major", "strided"};
inline constexpr std::string_view kConvertLabels[] = {"integer", "native"};

inline constexpr int kLongestAccess = 16;  // bytes that one thread moves with one load or store
inline constexpr std::int64_t kLongestGridY = 65535;
inline constexpr int kWarp = 32;  // threads

/// Throws std::invalid_argument unless the Config field is a power of two.
void require_power_of_two(const Config& config, std::string_view field);
/// `vector` elements must be one access, and need channels next to each other.
void check_vector(const Spec& spec, const Config& config);
/// Elements of the longest access that the Spec's dtype and layout allow.
[[nodiscard]] int longest_vector(const Spec& spec);
/// `min_blocks` blocks must not have more threads than a multiprocessor.
void check_min_blocks(const Config& config);

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

inline constexpr Field kDtypeField = {"dtype", 0, 2, 2, kDtypeLabels, "element type of activations"};
inline constexpr Field kLayoutField = {"layout", 0, 2, 0, kLayoutLabels, "which stride of the activations is 1"};
inline constexpr std::string_view kMapLabels[] = {"positions", "positions16", "bits", "offsets"};
inline constexpr Field kMapField = {"map", 0, 3, 0, kMapLabels, "how a token's place in its sequence is stored"};
inline constexpr Field kVectorField = {"vector", 1, 8, 8, {}, "elements that one load or store moves"};
inline constexpr Field kConvertField = {
    "convert", 0, 1, 1, kConvertLabels, "fp32 to half precision by integer arithmetic, or as sm_80 and later can"};

}  // namespace packjit
