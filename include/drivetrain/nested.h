// SPDX-License-Identifier: Apache-2.0
// Nested values of tensors: what batches, model outputs and collectives are made of.
//
// A nested value is a tensor; a vector, array, map, pair, tuple or optional of nested values; a
// struct of up to 12 public members; or a type with a member `fields()` that returns
// std::tie(...) of its parts. Anything else in it (numbers, strings, ids) is carried along as it
// is. Tensors are visited in one fixed order: members as declared, elements by position, map
// entries by ascending key.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace drivetrain {

namespace detail {

template <class T>
concept TensorLeaf = std::derived_from<T, at::TensorBase>;

template <class T>
concept HasFields = requires(T& value) { value.fields(); };

// torch::data::Example and its like: constructors, so no aggregate.
template <class T>
concept DataAndTarget = !HasFields<T> && !std::is_aggregate_v<T> && requires(T& value) {
  value.data;
  value.target;
};

// An Example without a target.
template <class T>
concept DataOnly = !HasFields<T> && !DataAndTarget<T> && !std::is_aggregate_v<T> &&
                   requires { requires std::is_member_object_pointer_v<decltype(&T::data)>; };

template <class T>
concept MapLike = requires(T& value) {
  typename T::key_type;
  typename T::mapped_type;
  value.begin()->second;
};

// torch::OrderedDict: items with key() and value().
template <class T>
concept OrderedDictLike = requires(T& value) {
  value.begin()->key();
  value.begin()->value();
};

template <class T>
concept SequenceLike = !MapLike<T> && !OrderedDictLike<T> && requires(T& value) {
  typename T::value_type;
  { *value.begin() } -> std::same_as<typename T::value_type&>;
  value.size();
} && !std::is_arithmetic_v<typename T::value_type>;

template <class T>
concept TupleLike = !SequenceLike<T> && requires { std::tuple_size<T>::value; };

struct AnyField {
  template <class T>
  operator T() const;  // NOLINT: converts to any member's type, never called
};

template <class T, size_t... I>
constexpr bool braces_with(std::index_sequence<I...>) {
  return requires { T{((void)I, AnyField{})...}; };
}

// The number of members of an aggregate, found by trying ever longer brace initialisers.
template <class T, size_t N = 12>
constexpr size_t num_fields() {
  if constexpr (N == 0 || braces_with<T>(std::make_index_sequence<N>()))
    return N;
  else
    return num_fields<T, N - 1>();
}

template <class T>
concept Struct = std::is_class_v<T> && std::is_aggregate_v<T> && !SequenceLike<T> &&
                 !TupleLike<T> && !HasFields<T>;

#define DRIVETRAIN_TIE(N, ...)          \
  if constexpr (num_fields<T>() == N) { \
    auto& [__VA_ARGS__] = value;        \
    return std::tie(__VA_ARGS__);       \
  } else

template <class T>
auto tie_fields(T& value) {
  DRIVETRAIN_TIE(1, a)
  DRIVETRAIN_TIE(2, a, b)
  DRIVETRAIN_TIE(3, a, b, c)
  DRIVETRAIN_TIE(4, a, b, c, d)
  DRIVETRAIN_TIE(5, a, b, c, d, e)
  DRIVETRAIN_TIE(6, a, b, c, d, e, f)
  DRIVETRAIN_TIE(7, a, b, c, d, e, f, g)
  DRIVETRAIN_TIE(8, a, b, c, d, e, f, g, h)
  DRIVETRAIN_TIE(9, a, b, c, d, e, f, g, h, i)
  DRIVETRAIN_TIE(10, a, b, c, d, e, f, g, h, i, j)
  DRIVETRAIN_TIE(11, a, b, c, d, e, f, g, h, i, j, k)
  DRIVETRAIN_TIE(12, a, b, c, d, e, f, g, h, i, j, k, l)
  return std::tuple<>();
}
#undef DRIVETRAIN_TIE

template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;

template <class T, class Visit>
void visit_map(T& value, Visit& visit);

// Calls visit(tensor&) on every tensor of `value` in the documented order.
template <class T, class Visit>
void visit_tensors(T& value, Visit& visit) {
  if constexpr (TensorLeaf<T>) {
    visit(value);
  } else if constexpr (HasFields<T>) {
    std::apply([&](auto&... part) { (visit_tensors(part, visit), ...); }, value.fields());
  } else if constexpr (DataAndTarget<T>) {
    visit_tensors(value.data, visit);
    visit_tensors(value.target, visit);
  } else if constexpr (DataOnly<T>) {
    visit_tensors(value.data, visit);
  } else if constexpr (is_optional<T>) {
    if (value) visit_tensors(*value, visit);
  } else if constexpr (MapLike<T>) {
    visit_map(value, visit);
  } else if constexpr (OrderedDictLike<T>) {
    for (auto& item : value) visit_tensors(item.value(), visit);
  } else if constexpr (SequenceLike<T>) {
    for (auto& element : value) visit_tensors(element, visit);
  } else if constexpr (TupleLike<T>) {
    std::apply([&](auto&... part) { (visit_tensors(part, visit), ...); }, value);
  } else if constexpr (Struct<T>) {
    std::apply([&](auto&... part) { (visit_tensors(part, visit), ...); }, tie_fields(value));
  }
}

template <class T, class Visit>
void visit_map(T& value, Visit& visit) {
  using Entry = std::remove_reference_t<decltype(*value.begin())>;
  std::vector<Entry*> entries;
  for (auto& entry : value) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(),
            [](const Entry* a, const Entry* b) { return a->first < b->first; });
  for (Entry* entry : entries) visit_tensors(entry->second, visit);
}

}  // namespace detail

// Calls fn(const at::Tensor&) on every tensor of `value`.
template <class T, class Fn>
void for_each_tensor(const T& value, Fn&& fn) {
  auto visit = [&fn](at::Tensor& tensor) { fn(static_cast<const at::Tensor&>(tensor)); };
  // The visitor takes mutable parts so that one traversal serves reading and writing.
  detail::visit_tensors(const_cast<T&>(value), visit);
}

// `value` with each tensor t replaced by fn(t); everything else is copied.
template <class T, class Fn>
T map_tensors(T value, Fn&& fn) {
  auto visit = [&fn](at::Tensor& tensor) { tensor = fn(static_cast<const at::Tensor&>(tensor)); };
  detail::visit_tensors(value, visit);
  return value;
}

// The tensors of `value`, in order.
template <class T>
std::vector<at::Tensor> flatten(const T& value) {
  std::vector<at::Tensor> tensors;
  for_each_tensor(value, [&tensors](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

// `value` with its tensors replaced, in order. Throws std::invalid_argument if their number
// differs.
template <class T>
T unflatten(T value, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  value = map_tensors(std::move(value), [&](const at::Tensor&) {
    if (next == tensors.size()) throw std::invalid_argument("unflatten: too few tensors");
    return tensors[next++];
  });
  if (next != tensors.size()) throw std::invalid_argument("unflatten: too many tensors");
  return value;
}

// A nested value as bytes plus tensors, to bring it to another rank. Sendable are the nested values
// whose other parts are numbers, enums, strings and what holds them, of types that can be
// default-constructed. Both ends must be the same program.
namespace detail {

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

}  // namespace detail

}  // namespace drivetrain
