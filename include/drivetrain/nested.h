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
#include <optional>
#include <stdexcept>
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

}  // namespace drivetrain
