// Status: the outcome of a call that can fail. No exception crosses a module's border in xla_ffi/.
#ifndef JAXMG_XLA_FFI_BASE_STATUS_H_
#define JAXMG_XLA_FFI_BASE_STATUS_H_

#include <exception>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <utility>

namespace jaxmg {

enum class Code {
  kOk = 0,
  kInvalidArgument,    // the call is invalid
  kResourceExhausted,  // out of memory
  kUnavailable,        // a library or a device is missing
  kDeadlineExceeded,   // a rank did not arrive in time
  kAborted,            // another rank failed
  kCancelled,          // the user has interrupted the call
  kInternal,
};

// Copying a Status allocates no memory, so a failure can always be passed on.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : code_(code), message_(std::make_shared<const std::string>(std::move(message))) {}
  // Makes a Status from a text with static lifetime. Allocates no memory.
  static Status Fixed(Code code, const char* text) noexcept {
    Status status;
    status.code_ = code;
    status.fixed_ = text;
    return status;
  }

  static Status Ok() noexcept { return Status(); }
  bool ok() const noexcept { return code_ == Code::kOk; }
  Code code() const noexcept { return code_; }
  const char* text() const noexcept { return message_ ? message_->c_str() : fixed_; }
  std::string message() const { return text(); }

 private:
  Code code_ = Code::kOk;
  const char* fixed_ = "";
  std::shared_ptr<const std::string> message_;
};

// Concatenates the pieces to the message: Error(Code::kInternal, "rank ", 3, " is missing").
template <typename... Pieces>
Status Error(Code code, const Pieces&... pieces) {
  std::ostringstream text;
  (text << ... << pieces);
  return Status(code, text.str());
}

// Makes a Status from the current exception.
inline Status CurrentException() noexcept {
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
    } catch (const std::exception& error) {
      return Error(Code::kInternal, error.what());
    } catch (...) {
      return Status::Fixed(Code::kInternal, "an exception of unknown type");
    }
  } catch (...) {  // no memory for the message
  }
  return Status::Fixed(Code::kResourceExhausted, "out of host memory");
}

// Calls `step` and returns its Status, or an error if it throws. Any small allocation on the host
// may throw, and the other ranks must learn of it.
template <typename Step>
Status Guarded(const Step& step) noexcept {
  try {
    return step();
  } catch (...) {
    return CurrentException();
  }
}

}  // namespace jaxmg

#define JAXMG_RETURN_IF_ERROR(expression)          \
  do {                                             \
    ::jaxmg::Status jaxmg_status_ = (expression);  \
    if (!jaxmg_status_.ok()) return jaxmg_status_; \
  } while (false)

#endif  // JAXMG_XLA_FFI_BASE_STATUS_H_
