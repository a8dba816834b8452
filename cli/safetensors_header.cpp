#include "cli/safetensors_header.hpp"

#include <cstddef>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace packjit {
namespace {

using Json = nlohmann::json;

/// Takes the events of the JSON parser, which keeps no stack of its own in C++ calls. Legal headers nest three deep:
/// { name: { key: [ number ] } }, so anything deeper is refused when it opens.
class HeaderReader {
 public:
  // nlohmann/json asks for these names.
  // NOLINTBEGIN(readability-identifier-naming)
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;
  // NOLINTEND(readability-identifier-naming)

  explicit HeaderReader(std::string_view file_name) : file_name_(file_name) {}

  std::vector<SafetensorsEntry> take() { return std::move(entries_); }

  bool start_object(std::size_t) {
    switch (state_) {
      case State::outside:
        state_ = State::names;
        return true;
      case State::tensor:
        return open_tensor();
      case State::metadata:
        state_ = State::metadata_keys;
        return true;
      default:
        wrong("an object");
    }
  }

  bool key(string_t& text) {
    switch (state_) {
      case State::names:
        if (!names_.insert(text).second) fail(fmt::format("the name {} is given twice", quoted_name(text)));
        name_ = text;
        state_ = text == "__metadata__" ? State::metadata : State::tensor;
        return true;
      case State::metadata_keys:
        state_ = State::metadata_value;
        return true;
      case State::tensor_keys:
        return open_key(text);
      default:
        wrong("a key");
    }
  }

  bool string(string_t& text) {
    switch (state_) {
      case State::dtype:
        entries_.back().dtype = text;
        state_ = State::tensor_keys;
        return true;
      case State::metadata_value:
        state_ = State::metadata_keys;
        return true;
      default:
        wrong(fmt::format("the string {}", quoted_name(text)));
    }
  }

  bool number_unsigned(number_unsigned_t number) {
    switch (state_) {
      case State::shape_numbers:
        entries_.back().shape.push_back(number);
        return true;
      case State::offset_numbers:
        if (offsets_ == 2) fail_tensor("data_offsets has more than two numbers; expected [begin, end]");
        (offsets_++ == 0 ? entries_.back().begin : entries_.back().end) = number;
        return true;
      default:
        wrong(fmt::format("the number {}", number));
    }
  }

  bool start_array(std::size_t) {
    switch (state_) {
      case State::shape:
        state_ = State::shape_numbers;
        return true;
      case State::offsets:
        state_ = State::offset_numbers;
        return true;
      default:
        wrong("an array");
    }
  }

  bool end_array() {
    if (state_ == State::offset_numbers && offsets_ != 2) {
      fail_tensor(fmt::format("data_offsets has {} numbers; expected [begin, end]", offsets_));
    }
    state_ = State::tensor_keys;
    return true;
  }

  bool end_object() {
    if (state_ == State::tensor_keys) {
      for (const std::string_view needed : kTensorKeys) {
        if (!keys_.contains(std::string(needed))) fail_tensor(fmt::format("there is no {}", needed));
      }
    }
    state_ = state_ == State::names ? State::outside : State::names;
    return true;
  }

  bool null() { wrong("null"); }
  bool boolean(bool) { wrong("a truth value"); }
  bool number_integer(number_integer_t number) { wrong(fmt::format("the number {}", number)); }
  bool number_float(number_float_t, const string_t& text) { wrong(fmt::format("the number {}", quoted_name(text))); }
  bool binary(binary_t&) { wrong("binary data"); }

  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) {
    // The parser's own text repeats bytes of the file; quoted_name() makes them harmless.
    fail(fmt::format("the header is not JSON at byte {} of it: {}", position, quoted_name(error.what())));
  }

 private:
  enum class State {
    outside,
    names,
    metadata,
    metadata_keys,
    metadata_value,
    tensor,
    tensor_keys,
    dtype,
    shape,
    shape_numbers,
    offsets,
    offset_numbers
  };
  static constexpr std::string_view kTensorKeys[] = {"dtype", "shape", "data_offsets"};

  bool open_tensor() {
    entries_.push_back({});
    entries_.back().name = name_;
    keys_.clear();
    offsets_ = 0;
    state_ = State::tensor_keys;
    return true;
  }

  bool open_key(const std::string& text) {
    if (text == "dtype") {
      state_ = State::dtype;
    } else if (text == "shape") {
      state_ = State::shape;
    } else if (text == "data_offsets") {
      state_ = State::offsets;
    } else {
      fail_tensor(fmt::format("unknown key {}; expected dtype, shape and data_offsets", quoted_name(text)));
    }
    if (!keys_.insert(text).second) fail_tensor(fmt::format("{} is given twice", text));
    return true;
  }

  [[nodiscard]] std::string_view expected() const {
    switch (state_) {
      case State::outside:
        return "an object with a member for each tensor";
      case State::tensor:
        return "an object with dtype, shape and data_offsets";
      case State::metadata:
        return "an object of strings as __metadata__";
      case State::metadata_value:
        return "a string as a value of __metadata__";
      case State::dtype:
        return "a string as dtype";
      case State::shape:
        return "an array as shape";
      case State::shape_numbers:
        return "integers from 0 to 2^64-1 in shape";
      case State::offsets:
        return "an array as data_offsets";
      case State::offset_numbers:
        return "integers from 0 to 2^64-1 in data_offsets";
      default:
        return "a key";
    }
  }

  [[noreturn]] void wrong(std::string_view found) const {
    const bool in_tensor = state_ != State::outside && state_ != State::names;
    const std::string text = fmt::format("expected {}, found {}", expected(), found);
    if (in_tensor) fail_tensor(text);
    fail(text);
  }
  [[noreturn]] void fail_tensor(std::string_view text) const {
    fail(fmt::format("tensor {}: {}", quoted_name(name_), text));
  }
  [[noreturn]] void fail(std::string_view text) const {
    throw std::invalid_argument(fmt::format("{}: safetensors header: {}", file_name_, text));
  }

  std::string_view file_name_;
  State state_ = State::outside;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> keys_;  ///< of the tensor being read
  std::string name_;
  int offsets_ = 0;
};

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view text, std::string_view file_name) {
  const auto fail = [&](const std::string& found) {
    throw std::invalid_argument(fmt::format("{}: safetensors header: {}", file_name, found));
  };
  // To the parser a NUL is the end of the text, whatever follows.
  if (const std::size_t at = text.find('\0'); at != std::string_view::npos) {
    fail(fmt::format("a NUL byte at byte {} of it; expected JSON, then nothing but spaces", at));
  }
  HeaderReader reader(file_name);
  Json::sax_parse(text, &reader);
  if (const std::size_t at = text.find_last_not_of(' '); at != std::string_view::npos && text[at] != '}') {
    fail(fmt::format("{} at byte {} of it; expected nothing but spaces behind the closing brace",
                     quoted_name(text.substr(at, 1)), at));
  }
  return reader.take();
}

std::string quoted_name(std::string_view name) {
  constexpr std::size_t kLongest = 100;  // bytes
  const bool cut = name.size() > kLongest;
  const std::string text =
      Json(std::string(name.substr(0, kLongest))).dump(-1, ' ', true, Json::error_handler_t::replace);
  return cut ? text + "..." : text;
}

}  // namespace packjit
