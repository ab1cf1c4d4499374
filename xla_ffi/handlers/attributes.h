// Attributes: the arguments of a handler that are not arrays. Each routine has its own struct,
// which names each attribute once. XLA's attributes are decoded into it, and the ranks of several
// processes compare its text.
//
// A call must have exactly the attributes of the struct. A missing, unknown or wrongly typed
// attribute is an error that names it.
#ifndef JAXMG_XLA_FFI_HANDLERS_ATTRIBUTES_H_
#define JAXMG_XLA_FFI_HANDLERS_ATTRIBUTES_H_

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

#include "xla/ffi/api/ffi.h"
#include "xla_ffi/device/blas.h"

namespace jaxmg {

struct Processes {
  const int64_t* data;  // the process of rank r of group g is data[g * ranks + r]
  size_t count;         // 0: all ranks are in this process
};

// Real numbers. `data` points into the executable's memory.
struct Numbers {
  const double* data;
  size_t count;
};

// The attributes of every call; docs/architecture.md explains them. `Visit` calls visit(name,
// value) for each attribute.
struct CommonAttributes {
  int64_t ranks;
  int64_t tile;
  int64_t grid_rows;
  std::string_view backend;
  Processes processes;

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    visit("backend", attributes.backend);
    visit("grid_rows", attributes.grid_rows);
    visit("processes", attributes.processes);
    visit("ranks", attributes.ranks);
    visit("tile", attributes.tile);
  }
};

// The attributes of a routine that has none.
struct NoAttributes {
  template <typename Attributes, typename Visitor>
  static void Visit(Attributes&, Visitor&) {}
};

// The attributes of a routine on a square matrix.
struct SquareAttributes : CommonAttributes {
  int64_t n;

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    CommonAttributes::Visit(attributes, visit);
    visit("n", attributes.n);
  }
};

// Adds the precision in which products are computed.
struct PrecisionAttributes : SquareAttributes {
  Precision products;

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    SquareAttributes::Visit(attributes, visit);
    visit("products", attributes.products);
  }
};

// Adds the range [first, last) of the eigenvalues, in ascending order, whose eigenvectors are
// computed.
struct SubsetAttributes : SquareAttributes {
  int64_t first;
  int64_t last;

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    SquareAttributes::Visit(attributes, visit);
    visit("first", attributes.first);
    visit("last", attributes.last);
  }
};

// Adds whether an eigenproblem computes eigenvectors.
struct VectorsAttributes : SquareAttributes {
  bool vectors;

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    SquareAttributes::Visit(attributes, visit);
    visit("vectors", attributes.vectors);
  }
};

// Declares an enumeration as an attribute: the number of its values, which start at 0, and its name
// in errors.
template <typename Enum>
struct EnumAttribute;
template <>
struct EnumAttribute<Op> {
  static constexpr int64_t kCount = static_cast<int64_t>(Op::kConjTrans) + 1;
  static constexpr char kWhat[] = "operation";
};
template <>
struct EnumAttribute<Precision> {
  static constexpr int64_t kCount = static_cast<int64_t>(Precision::kChosen) + 1;  // the named
                                                                                   // values
  static constexpr char kWhat[] = "precision";
};

// Decodes the attributes of a struct one by one and records the first error.
class AttributeDecoder {
 public:
  explicit AttributeDecoder(const XLA_FFI_Attrs& attributes) : attributes_(attributes) {}

  void operator()(std::string_view name, int64_t& value);
  void operator()(std::string_view name, bool& value);
  void operator()(std::string_view name, std::string_view& value);
  void operator()(std::string_view name, Processes& value);
  void operator()(std::string_view name, Numbers& value);
  template <typename Enum, typename = std::enable_if_t<std::is_enum_v<Enum>>>
  void operator()(std::string_view name, Enum& value) {
    int64_t number = 0;
    (*this)(name, number);
    if (number < 0 || number >= EnumAttribute<Enum>::kCount) {
      Fail(name, std::string(": there is no ") + EnumAttribute<Enum>::kWhat + " " +
                     std::to_string(number));
    }
    value = static_cast<Enum>(number);
  }

  // Call after all attributes of the struct. Returns the error, or an empty string.
  std::string Finish();

 private:
  // Returns the attribute's index, or -1 if it is missing.
  int64_t Find(std::string_view name);
  const void* Scalar(std::string_view name, XLA_FFI_DataType dtype, const char* otherwise);
  const XLA_FFI_Array* Array(std::string_view name, XLA_FFI_DataType dtype, const char* otherwise);
  void Fail(std::string_view name, const std::string& what);

  const XLA_FFI_Attrs& attributes_;
  uint64_t read_ = 0;  // bits, by index
  std::string error_;
};

// Formats the values that the ranks of several processes compare, as in "n 5, tile 2".
class AttributeText {
 public:
  void operator()(std::string_view, const Processes&) {}
  void operator()(std::string_view name, std::string_view value) { Add(name) << value; }
  template <typename Value,
            typename = std::enable_if_t<std::is_arithmetic_v<Value> || std::is_enum_v<Value>>>
  void operator()(std::string_view name, Value value) {
    Add(name) << static_cast<int64_t>(value);
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostream& Add(std::string_view name) {
    if (text_.tellp() > 0) text_ << ", ";
    return text_ << name << " ";
  }

  std::ostringstream text_;
};

template <typename Attributes>
std::string TextOf(const Attributes& attributes) {
  AttributeText text;
  Attributes::Visit(attributes, text);
  return text.text();
}

// Decodes all attributes of a call. Returns the error, or an empty string.
template <typename Attributes>
std::string Decode(const XLA_FFI_Attrs& attributes, Attributes* decoded) {
  AttributeDecoder decoder(attributes);
  Attributes::Visit(*decoded, decoder);
  return decoder.Finish();
}

// The type that a handler binds: all attributes of a call at once.
template <typename Attributes>
struct StrictAttributes : Attributes {};

}  // namespace jaxmg

template <typename Attributes>
struct xla::ffi::AttrDecoding<jaxmg::StrictAttributes<Attributes>> {
  using Type = jaxmg::StrictAttributes<Attributes>;
  static std::optional<Type> Decode(XLA_FFI_AttrType, void* attributes,
                                    DiagnosticEngine& diagnostic) {
    Type decoded = {};
    const std::string error = jaxmg::Decode(*static_cast<const XLA_FFI_Attrs*>(attributes),
                                            static_cast<Attributes*>(&decoded));
    if (error.empty()) return decoded;
    diagnostic.Emit(error);
    return std::nullopt;
  }
};

#endif  // JAXMG_XLA_FFI_HANDLERS_ATTRIBUTES_H_
