// SPDX-License-Identifier: Apache-2.0
// A nested value as bytes plus tensors, to send a batch from one rank to another.
//
// Sendable are the nested values of nested.h whose other parts are numbers, enums, strings, and
// what holds them; the type must be default-constructible. Both ends must be the same program.
#pragma once

#include <drivetrain/nested.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace drivetrain::detail {

template <class T>
concept Plain = std::is_arithmetic_v<T> || std::is_enum_v<T>;

// Writes and reads the same parts in the same order: one walk serves both ways.
class Wire {
 public:
  Wire() = default;
  Wire(std::string bytes, std::vector<at::Tensor> tensors)
      : bytes(std::move(bytes)), tensors(std::move(tensors)), reading_(true) {}

  bool reading() const { return reading_; }

  void tensor(at::Tensor& value) {
    bool defined = value.defined();
    number(defined);
    if (!defined) return;
    if (!reading_) return tensors.push_back(value);
    if (next_tensor_ == tensors.size()) throw std::invalid_argument("wire: too few tensors");
    value = tensors[next_tensor_++];
  }

  template <Plain T>
  void number(T& value) {
    raw(&value, sizeof value);
  }

  void text(std::string& value) {
    size_t size = value.size();
    number(size);
    if (reading_) value.resize(checked(size));
    raw(value.data(), size);
  }

  // A number of elements that is to be read; each takes at least a byte, so that a damaged number
  // is refused before memory is taken for it.
  size_t checked(size_t count) const {
    if (count > bytes.size() - position_) throw std::invalid_argument("wire: too few bytes");
    return count;
  }

  std::string bytes;
  std::vector<at::Tensor> tensors;

 private:
  void raw(void* value, size_t size) {
    if (!reading_) {
      bytes.append(static_cast<const char*>(value), size);
    } else {
      std::memcpy(value, bytes.data() + position_, checked(size));
      position_ += size;
    }
  }

  bool reading_ = false;
  size_t position_ = 0;
  size_t next_tensor_ = 0;
};

template <class T>
constexpr bool is_sendable();

template <class Tuple>
constexpr bool kAllSendable = false;
template <class... Parts>
constexpr bool kAllSendable<std::tuple<Parts&...>> =
    (... && is_sendable<std::remove_const_t<Parts>>());
template <class... Parts>
constexpr bool kAllSendable<std::tuple<Parts...>> = (... && is_sendable<Parts>());
template <class A, class B>
constexpr bool kAllSendable<std::pair<A, B>> = is_sendable<A>() && is_sendable<B>();
template <class E, size_t N>
constexpr bool kAllSendable<std::array<E, N>> = is_sendable<E>();

template <class T>
constexpr bool is_sendable() {
  if constexpr (TensorLeaf<T> || Plain<T> || std::is_same_v<T, std::string>)
    return true;
  else if constexpr (!std::is_default_constructible_v<T>)
    return false;
  else if constexpr (HasFields<T>)
    return kAllSendable<decltype(std::declval<T&>().fields())>;
  else if constexpr (DataAndTarget<T>)
    return is_sendable<decltype(T::data)>() && is_sendable<decltype(T::target)>();
  else if constexpr (DataOnly<T>)
    return is_sendable<decltype(T::data)>();
  else if constexpr (is_optional<T>)
    return is_sendable<typename T::value_type>();
  else if constexpr (MapLike<T>)
    return is_sendable<typename T::key_type>() && is_sendable<typename T::mapped_type>();
  else if constexpr (TupleLike<T>)
    return kAllSendable<T>;
  else if constexpr (requires(T& v) {
                       v.resize(size_t{0});
                       v[0];
                     })
    return !std::is_same_v<T, std::vector<bool>> && is_sendable<typename T::value_type>();
  else if constexpr (requires { std::tuple_size<T>::value; })
    return kAllSendable<T>;
  else if constexpr (Struct<T>)
    return kAllSendable<decltype(tie_fields(std::declval<T&>()))>;
  else
    return false;
}

template <class T>
void transfer(Wire& wire, T& value);

template <class Map>
void transfer_map(Wire& wire, Map& map) {
  size_t count = map.size();
  wire.number(count);
  if (!wire.reading()) {
    for (auto& [key, mapped] : map) {
      transfer(wire, const_cast<typename Map::key_type&>(key));
      transfer(wire, mapped);
    }
    return;
  }
  map.clear();
  wire.checked(count);
  for (size_t i = 0; i < count; ++i) {
    typename Map::key_type key{};
    transfer(wire, key);
    transfer(wire, map[std::move(key)]);
  }
}

template <class Sequence>
void transfer_sequence(Wire& wire, Sequence& sequence) {
  size_t count = sequence.size();
  wire.number(count);
  if (wire.reading()) sequence.resize(wire.checked(count));
  for (auto& element : sequence) transfer(wire, element);
}

// Writes `value` to the wire, or reads it from there.
template <class T>
void transfer(Wire& wire, T& value) {
  static_assert(is_sendable<T>());
  const auto each = [&wire](auto&... parts) { (transfer(wire, parts), ...); };
  if constexpr (TensorLeaf<T>) {
    wire.tensor(value);
  } else if constexpr (Plain<T>) {
    wire.number(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    wire.text(value);
  } else if constexpr (HasFields<T>) {
    std::apply(each, value.fields());
  } else if constexpr (DataAndTarget<T>) {
    each(value.data, value.target);
  } else if constexpr (DataOnly<T>) {
    each(value.data);
  } else if constexpr (is_optional<T>) {
    bool present = value.has_value();
    wire.number(present);
    if (wire.reading() && present) value.emplace();
    if (present) transfer(wire, *value);
  } else if constexpr (MapLike<T>) {
    transfer_map(wire, value);
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply(each, value);
  } else if constexpr (requires { value.resize(size_t{0}); }) {
    transfer_sequence(wire, value);
  } else {
    std::apply(each, tie_fields(value));
  }
}

}  // namespace drivetrain::detail
