// SPDX-License-Identifier: Apache-2.0
// From samples to a batch. The default, by the type of a sample (B: the number of samples):
//
//   tensor of shape (...)             tensor of shape (B, ...)
//   bool, integer, float, double      tensor of shape (B), of that very type
//   vector, array of those N numbers  tensor of shape (B, N)
//   std::string                       std::vector<std::string>
//   Example, pair, tuple, array,      the same, each part collated: pair<Tensor, int64_t> becomes
//   vector, map, optional             pair<Tensor, Tensor>
//   struct of tensors, or with        the same struct, each tensor stacked
//   fields(), see nested.h
//
// Contiguous CPU tensors are copied straight into the batch; others go through at::stack, with
// their gradient. Samples that do not fit together (shapes, types, lengths, keys) throw
// std::invalid_argument, which names the field and both shapes; PadCollate and ListCollate serve
// those. Anything else needs a function of your own: batch(std::vector<Sample>).
#pragma once

#include <ATen/core/Tensor.h>
#include <drivetrain/nested.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace drivetrain {

// Collates as the default does, but pads tensors (and vectors of numbers) of different sizes
// behind their contents to the largest size in each dimension.
struct PadCollate {
  double value = 0;
};

// Leaves the samples as they are: the batch is std::vector<Sample>.
struct ListCollate {};

namespace detail {

// The way to a field, for messages: "target", "[1].first".
struct Field {
  const Field* parent = nullptr;
  const char* name = nullptr;
  int64_t index = -1;
};

struct CollateContext {
  std::optional<double> padding;
};

at::Tensor stack_samples(const std::vector<const at::Tensor*>& samples,
                         const CollateContext& context, const Field& field);

// One tensor a sample from raw numbers: `data` has `sizes[i]` of them for sample i.
at::Tensor stack_numbers(const std::vector<const void*>& data, const std::vector<int64_t>& sizes,
                         at::ScalarType type, const CollateContext& context, const Field& field);
at::Tensor tensor_of_numbers(const void* data, int64_t count, at::ScalarType type);
[[noreturn]] void fail_unequal(const char* what, int64_t first, int64_t sample, int64_t other,
                               const Field& field);

template <class T>
concept Number = std::is_arithmetic_v<T> && !std::is_same_v<T, long double>;

template <Number T>
constexpr at::ScalarType scalar_type() {
  if constexpr (std::is_same_v<T, bool>)
    return at::kBool;
  else if constexpr (std::is_same_v<T, float>)
    return at::kFloat;
  else if constexpr (std::is_same_v<T, double>)
    return at::kDouble;
  else if constexpr (sizeof(T) == 1)
    return std::is_signed_v<T> ? at::kChar : at::kByte;
  else if constexpr (sizeof(T) == 2)
    return std::is_signed_v<T> ? at::kShort : at::kUInt16;
  else if constexpr (sizeof(T) == 4)
    return std::is_signed_v<T> ? at::kInt : at::kUInt32;
  else
    return std::is_signed_v<T> ? at::kLong : at::kUInt64;
}

// Collator<S>::Type is the batch; run() makes it. Undefined for types that have no default.
template <class S>
struct Collator {
  using Type = void;
};

template <class S>
using Collated = typename Collator<S>::Type;

template <class S>
using Pointers = std::vector<const S*>;

// The parts of the samples that `part` selects, collated.
template <class S, class Part>
auto collate_part(const Pointers<S>& samples, const Part& part, const CollateContext& context,
                  const Field& field) {
  using P = std::remove_cvref_t<decltype(part(*samples.front()))>;
  Pointers<P> parts;
  parts.reserve(samples.size());
  for (const S* sample : samples) parts.push_back(&part(*sample));
  return Collator<P>::run(parts, context, field);
}

// Throws unless all samples have as many elements as the first.
template <class S>
void require_equal_sizes(const Pointers<S>& samples, const Field& field) {
  const auto size = samples.front()->size();
  for (size_t i = 1; i < samples.size(); ++i)
    if (samples[i]->size() != size)
      fail_unequal("elements", static_cast<int64_t>(size), static_cast<int64_t>(i),
                   static_cast<int64_t>(samples[i]->size()), field);
}

template <TensorLeaf S>
struct Collator<S> {
  using Type = at::Tensor;
  static Type run(const Pointers<S>& samples, const CollateContext& context, const Field& field) {
    return stack_samples(Pointers<at::Tensor>(samples.begin(), samples.end()), context, field);
  }
};

template <Number S>
struct Collator<S> {
  using Type = at::Tensor;
  static Type run(const Pointers<S>& samples, const CollateContext&, const Field&) {
    const auto values = std::make_unique<S[]>(samples.size());
    for (size_t i = 0; i < samples.size(); ++i) values[i] = *samples[i];
    return tensor_of_numbers(values.get(), static_cast<int64_t>(samples.size()), scalar_type<S>());
  }
};

template <>
struct Collator<std::string> {
  using Type = std::vector<std::string>;
  static Type run(const Pointers<std::string>& samples, const CollateContext&, const Field&) {
    Type batch;
    for (const std::string* sample : samples) batch.push_back(*sample);
    return batch;
  }
};

// Vectors and arrays of numbers.
template <class S>
struct NumbersCollator {
  using Type = at::Tensor;
  static Type run(const Pointers<S>& samples, const CollateContext& context, const Field& field) {
    std::vector<const void*> data;
    std::vector<int64_t> sizes;
    for (const S* sample : samples) {
      data.push_back(sample->data());
      sizes.push_back(static_cast<int64_t>(sample->size()));
    }
    return stack_numbers(data, sizes, scalar_type<typename S::value_type>(), context, field);
  }
};

template <Number N>
  requires(!std::is_same_v<N, bool>)
struct Collator<std::vector<N>> : NumbersCollator<std::vector<N>> {};

template <Number N, size_t Size>
struct Collator<std::array<N, Size>> : NumbersCollator<std::array<N, Size>> {};

template <class E>
  requires(!Number<E> && !std::is_void_v<Collated<E>>)
struct Collator<std::vector<E>> {
  using Type = std::vector<Collated<E>>;
  static Type run(const Pointers<std::vector<E>>& samples, const CollateContext& context,
                  const Field& field) {
    require_equal_sizes(samples, field);
    Type batch;
    for (size_t i = 0; i < samples.front()->size(); ++i)
      batch.push_back(collate_part(
          samples, [i](const std::vector<E>& sample) -> const E& { return sample[i]; }, context,
          Field{&field, nullptr, static_cast<int64_t>(i)}));
    return batch;
  }
};

template <class E, size_t Size>
  requires(!Number<E> && !std::is_void_v<Collated<E>>)
struct Collator<std::array<E, Size>> {
  using Type = std::array<Collated<E>, Size>;
  static Type run(const Pointers<std::array<E, Size>>& samples, const CollateContext& context,
                  const Field& field) {
    Type batch;
    for (size_t i = 0; i < Size; ++i)
      batch[i] = collate_part(
          samples, [i](const std::array<E, Size>& sample) -> const E& { return sample[i]; },
          context, Field{&field, nullptr, static_cast<int64_t>(i)});
    return batch;
  }
};

template <class E>
  requires(!std::is_void_v<Collated<E>>)
struct Collator<std::optional<E>> {
  using Type = std::optional<Collated<E>>;
  static Type run(const Pointers<std::optional<E>>& samples, const CollateContext& context,
                  const Field& field) {
    const bool present = samples.front()->has_value();
    for (size_t i = 1; i < samples.size(); ++i)
      if (samples[i]->has_value() != present)
        fail_unequal("values", present, static_cast<int64_t>(i), !present, field);
    if (!present) return std::nullopt;
    return collate_part(
        samples, [](const std::optional<E>& sample) -> const E& { return *sample; }, context,
        field);
  }
};

// Maps with the keys of the first sample; a sample that lacks one, or has others, is refused.
template <class Map, class Batch>
struct MapCollator {
  using Type = Batch;
  static Type run(const Pointers<Map>& samples, const CollateContext& context, const Field& field) {
    require_equal_sizes(samples, field);
    Batch batch;
    for (const auto& [key, unused] : *samples.front()) {
      const Field name = name_of(key, field);
      for (size_t i = 1; i < samples.size(); ++i)
        if (!samples[i]->contains(key)) fail_unequal("values", 1, static_cast<int64_t>(i), 0, name);
      batch.emplace(key, collate_part(
                             samples,
                             [&k = key](const Map& sample) -> const typename Map::mapped_type& {
                               return sample.at(k);
                             },
                             context, name));
    }
    return batch;
  }

  template <class Key>
  static Field name_of(const Key& key, const Field& field) {
    if constexpr (std::is_same_v<Key, std::string>)
      return {&field, key.c_str()};
    else if constexpr (std::is_integral_v<Key>)
      return {&field, nullptr, static_cast<int64_t>(key)};
    else
      return {&field, "(an entry)"};
  }
};

template <class K, class V>
  requires(!std::is_void_v<Collated<V>>)
struct Collator<std::map<K, V>> : MapCollator<std::map<K, V>, std::map<K, Collated<V>>> {};

template <class K, class V>
  requires(!std::is_void_v<Collated<V>>)
struct Collator<std::unordered_map<K, V>>
    : MapCollator<std::unordered_map<K, V>, std::unordered_map<K, Collated<V>>> {};

template <class S, size_t I>
auto collate_element(const Pointers<S>& samples, const CollateContext& context,
                     const Field& field) {
  return collate_part(
      samples,
      [](const S& sample) -> const std::tuple_element_t<I, S>& { return std::get<I>(sample); },
      context, Field{&field, nullptr, static_cast<int64_t>(I)});
}

template <class A, class B>
  requires(!std::is_void_v<Collated<A>> && !std::is_void_v<Collated<B>>)
struct Collator<std::pair<A, B>> {
  using Type = std::pair<Collated<A>, Collated<B>>;
  static Type run(const Pointers<std::pair<A, B>>& samples, const CollateContext& context,
                  const Field& field) {
    return Type(collate_element<std::pair<A, B>, 0>(samples, context, field),
                collate_element<std::pair<A, B>, 1>(samples, context, field));
  }
};

template <class... Parts>
  requires(... && !std::is_void_v<Collated<Parts>>)
struct Collator<std::tuple<Parts...>> {
  using S = std::tuple<Parts...>;
  using Type = std::tuple<Collated<Parts>...>;
  static Type run(const Pointers<S>& samples, const CollateContext& context, const Field& field) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return Type(collate_element<S, I>(samples, context, field)...);
    }(std::index_sequence_for<Parts...>());
  }
};

// torch::data::Example<Data, Target> and its like.
template <template <class, class> class Example, class D, class T>
  requires(DataAndTarget<Example<D, T>> && !std::is_void_v<Collated<D>> &&
           !std::is_void_v<Collated<T>>)
struct Collator<Example<D, T>> {
  using S = Example<D, T>;
  using Type = Example<Collated<D>, Collated<T>>;
  static Type run(const Pointers<S>& samples, const CollateContext& context, const Field& field) {
    return Type(collate_part(
                    samples, [](const S& sample) -> const D& { return sample.data; }, context,
                    Field{&field, "data"}),
                collate_part(
                    samples, [](const S& sample) -> const T& { return sample.target; }, context,
                    Field{&field, "target"}));
  }
};

template <template <class, class> class Example, class D>
  requires(DataOnly<Example<D, void>> && !std::is_void_v<Collated<D>>)
struct Collator<Example<D, void>> {
  using S = Example<D, void>;
  using Type = Example<Collated<D>, void>;
  static Type run(const Pointers<S>& samples, const CollateContext& context, const Field& field) {
    return Type(collate_part(
        samples, [](const S& sample) -> const D& { return sample.data; }, context,
        Field{&field, "data"}));
  }
};

// A sample's members as a tuple of references.
template <class S>
auto members_of(const S& sample) {
  if constexpr (HasFields<S>)
    return const_cast<S&>(sample).fields();
  else
    return tie_fields(const_cast<S&>(sample));
}

template <class Tuple>
constexpr bool kCollatesToItself = false;
template <class... Parts>
constexpr bool kCollatesToItself<std::tuple<Parts&...>> =
    sizeof...(Parts) > 0 && (... && std::is_same_v<Collated<std::remove_cv_t<Parts>>, Parts>);

template <class S>
  requires((HasFields<S> || Struct<S>) &&
           kCollatesToItself<decltype(members_of(std::declval<const S&>()))>)
struct Collator<S> {
  using Type = S;
  static Type run(const Pointers<S>& samples, const CollateContext& context, const Field& field) {
    Type batch = *samples.front();
    const auto members = members_of(batch);
    [&]<size_t... I>(std::index_sequence<I...>) {
      ((std::get<I>(members) = member<I>(samples, context, field)), ...);
    }(std::make_index_sequence<std::tuple_size_v<decltype(members)>>());
    return batch;
  }

  template <size_t I>
  static auto member(const Pointers<S>& samples, const CollateContext& context,
                     const Field& field) {
    return collate_part(
        samples, [](const S& sample) -> const auto& { return std::get<I>(members_of(sample)); },
        context, Field{&field, nullptr, static_cast<int64_t>(I)});
  }
};

// Pointers to the elements of a vector, valid while both live.
template <class S>
class PointersTo {
 public:
  explicit PointersTo(const std::vector<S>& samples) {
    const S* first = nullptr;
    if constexpr (std::is_same_v<S, bool>) {  // its vector has no elements to point to
      copies_ = std::make_unique<bool[]>(samples.size());
      std::copy(samples.begin(), samples.end(), copies_.get());
      first = copies_.get();
    } else {
      first = samples.data();
    }
    pointers_.reserve(samples.size());
    for (size_t i = 0; i < samples.size(); ++i) pointers_.push_back(first + i);
  }
  const std::vector<const S*>& all() const { return pointers_; }
  const S* operator[](int64_t i) const { return pointers_[static_cast<size_t>(i)]; }

 private:
  std::unique_ptr<bool[]> copies_;
  std::vector<const S*> pointers_;
};

}  // namespace detail

// The default batch of samples, at least one. Throws std::invalid_argument as said above.
template <class S>
detail::Collated<S> collate(const std::vector<const S*>& samples,
                            std::optional<double> padding = std::nullopt) {
  static_assert(!std::is_void_v<detail::Collated<S>>,
                "samples of this type have no default batch (collate.h lists those that have); "
                "pass a function batch(std::vector<Sample>), or ListCollate()");
  return detail::Collator<S>::run(samples, {padding}, {});
}

template <class S>
detail::Collated<S> collate(const std::vector<S>& samples,
                            std::optional<double> padding = std::nullopt) {
  return collate(detail::PointersTo<S>(samples).all(), padding);
}

}  // namespace drivetrain
