#include "xla_ffi/handlers/attributes.h"

namespace jaxmg {
namespace {

std::string_view NameOf(const XLA_FFI_Attrs& attributes, int64_t i) {
  return {attributes.names[i]->ptr, attributes.names[i]->len};
}

}  // namespace

void AttributeDecoder::Fail(std::string_view name, const std::string& what) {
  if (error_.empty()) error_ = "attribute '" + std::string(name) + "'" + what;
}

int64_t AttributeDecoder::Find(std::string_view name) {
  for (int64_t i = 0; i < attributes_.size; ++i) {
    if (NameOf(attributes_, i) != name) continue;
    if (i < 64) read_ |= uint64_t{1} << i;
    return i;
  }
  Fail(name, " is missing");
  return -1;
}

const void* AttributeDecoder::Scalar(std::string_view name, XLA_FFI_DataType dtype,
                                     const char* otherwise) {
  const int64_t i = Find(name);
  if (i < 0) return nullptr;
  const auto* scalar = static_cast<const XLA_FFI_Scalar*>(attributes_.attrs[i]);
  if (attributes_.types[i] == XLA_FFI_AttrType_SCALAR && scalar->dtype == dtype) {
    return scalar->value;
  }
  Fail(name, otherwise);
  return nullptr;
}

void AttributeDecoder::operator()(std::string_view name, int64_t& value) {
  const void* data = Scalar(name, XLA_FFI_DataType_S64, " is no 64-bit integer");
  if (data != nullptr) value = *static_cast<const int64_t*>(data);
}

void AttributeDecoder::operator()(std::string_view name, bool& value) {
  const void* data = Scalar(name, XLA_FFI_DataType_PRED, " is no boolean");
  if (data != nullptr) value = *static_cast<const bool*>(data);
}

void AttributeDecoder::operator()(std::string_view name, std::string_view& value) {
  const int64_t i = Find(name);
  if (i < 0) return;
  if (attributes_.types[i] != XLA_FFI_AttrType_STRING) return Fail(name, " is no string");
  const auto* text = static_cast<const XLA_FFI_ByteSpan*>(attributes_.attrs[i]);
  value = {text->ptr, text->len};
}

const XLA_FFI_Array* AttributeDecoder::Array(std::string_view name, XLA_FFI_DataType dtype,
                                             const char* otherwise) {
  const int64_t i = Find(name);
  if (i < 0) return nullptr;
  const auto* array = static_cast<const XLA_FFI_Array*>(attributes_.attrs[i]);
  if (attributes_.types[i] == XLA_FFI_AttrType_ARRAY && array->dtype == dtype) return array;
  Fail(name, otherwise);
  return nullptr;
}

void AttributeDecoder::operator()(std::string_view name, Processes& value) {
  const XLA_FFI_Array* array = Array(name, XLA_FFI_DataType_S64, " is no array of 64-bit integers");
  if (array != nullptr) value = {static_cast<const int64_t*>(array->data), array->size};
}

void AttributeDecoder::operator()(std::string_view name, Numbers& value) {
  const XLA_FFI_Array* array = Array(name, XLA_FFI_DataType_F64, " is no array of float64 numbers");
  if (array != nullptr) value = {static_cast<const double*>(array->data), array->size};
}

std::string AttributeDecoder::Finish() {
  for (int64_t i = 0; i < attributes_.size; ++i) {
    const bool read = i < 64 && (read_ >> i & 1) != 0;
    if (!read) Fail(NameOf(attributes_, i), " is unknown to this routine");
  }
  return error_;
}

}  // namespace jaxmg
