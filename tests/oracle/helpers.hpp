#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "oracle/oracle.hpp"

namespace packjit::oracle::testing {

/// Reproducible values in [low, high). A linear congruential generator, so that every standard library gives the same.
class Values {
 public:
  explicit Values(std::uint64_t seed) : state_(seed) {}

  Array array(std::int64_t count, double low = -1.0, double high = 1.0) {
    Array values(static_cast<std::size_t>(count));
    for (double& value : values) value = low + (high - low) * next();
    return values;
  }

 private:
  double next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(state_ >> 11) * 0x1p-53;
  }

  std::uint64_t state_;
};

inline double dot(const Array& a, const Array& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline void expect_near(const Array& found, const Array& expected, double tolerance, const std::string& name) {
  ASSERT_EQ(found.size(), expected.size()) << name;
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << name << " " << i;
}

/// Compares `gradient` with central differences of `loss` by each element of `variable`, which `loss` reads. Four
/// points a step apart, so the truncation error is of order step^4: about 1e-12 for the values used here, as is the
/// rounding.
inline void expect_gradient(const Array& gradient, Array& variable, const std::function<double()>& loss,
                            const std::string& name) {
  constexpr double kStep = 1e-3;
  constexpr double kRelative = 1e-6;
  constexpr double kAbsolute = 1e-9;  // a gradient near zero has no relative error to speak of
  ASSERT_EQ(gradient.size(), variable.size()) << name;
  for (std::size_t i = 0; i < variable.size(); ++i) {
    const double at = variable[i];
    const auto loss_at = [&](double offset) {
      variable[i] = at + offset;
      return loss();
    };
    const double difference =
        (8.0 * (loss_at(kStep) - loss_at(-kStep)) - (loss_at(2 * kStep) - loss_at(-2 * kStep))) / (12.0 * kStep);
    variable[i] = at;
    EXPECT_NEAR(gradient[i], difference, kRelative * std::abs(difference) + kAbsolute) << name << " " << i;
  }
}

/// Tokens [first, last) of a token-major array with `row` values a token.
inline Array tokens(const Array& values, std::int64_t first, std::int64_t last, std::int64_t row) {
  return Array(values.begin() + first * row, values.begin() + last * row);
}

inline Array joined(Array first, const Array& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

inline Array sum(Array first, const Array& second) {
  std::transform(first.begin(), first.end(), second.begin(), first.begin(), std::plus<>());
  return first;
}

}  // namespace packjit::oracle::testing
