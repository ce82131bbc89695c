/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_RESULT_HPP
#define GPUPOOL_RESULT_HPP
/**
 * Failures of <gpupool/gpupool.hpp>, in the two forms between which a program chooses call by call: an
 * exception, gpupool::error, or a value, gpupool::result<T>. A program that is compiled with -fno-exceptions
 * has the values alone. Neither form needs run-time type information.
 *
 * A result is a value or a failure, as std::expected of C++23 is. A program looks at it before it takes the
 * value:
 *
 *     auto client = gpupool::client::try_open();
 *     if (!client)
 *         return complain(client.error().number(), client.error().text());
 *     use(*client);
 *
 * value() takes the value as well, and throws gpupool::error where there is none; without exceptions it ends
 * the process by std::abort().
 */
#include <cassert>
#include <cstdlib>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include <gpupool/gpupool.h>

#if defined(__cpp_exceptions)
#include <system_error>
#endif

namespace gpupool {

/** The reason why a call failed. A value: it stays as it is when the thread makes further calls. */
class failure {
  public:
    /** Of a call of the C interface that has just returned a number below 0 in this thread: takes its text.
     */
    explicit failure(int number) : number_(number), text_(gpupool_error_text()) {}

    /** A GPUPOOL_E_… */
    int number() const noexcept { return number_; }
    /** "GPUPOOL_E_EXHAUSTED" */
    const char *name() const noexcept { return gpupool_error_name(number_); }
    /** The full text, as gpupool_error_text() has it. */
    const std::string &text() const noexcept { return text_; }

  private:
    int number_;
    std::string text_;
};

#if defined(__cpp_exceptions)
namespace detail {
class error_category final : public std::error_category {
  public:
    const char *name() const noexcept override { return "gpupool"; }
    std::string message(int number) const override { return gpupool_error_name(number); }
    std::error_condition default_error_condition(int number) const noexcept override {
        switch (number) {
        case GPUPOOL_E_INVALID:
            return std::errc::invalid_argument;
        case GPUPOOL_E_EXHAUSTED:
        case GPUPOOL_E_TOO_LARGE:
        case GPUPOOL_E_NO_MEMORY:
            return std::errc::not_enough_memory;
        case GPUPOOL_E_NO_GPU:
            return std::errc::no_such_device;
        case GPUPOOL_E_CANCELLED:
            return std::errc::operation_canceled;
        case GPUPOOL_E_CONNECT:
            return std::errc::connection_refused;
        case GPUPOOL_E_DISCONNECTED:
        case GPUPOOL_E_SHUTDOWN:
            return std::errc::not_connected;
        case GPUPOOL_E_TIMED_OUT:
            return std::errc::timed_out;
        case GPUPOOL_E_PROTOCOL:
            return std::errc::protocol_error;
        default:
            return std::error_condition(number, *this);
        }
    }
};
} /* namespace detail */

/** The category of GPUPOOL_E_… numbers. Some of them equal a std::errc: EXHAUSTED, TOO_LARGE and NO_MEMORY
 * are not_enough_memory, TIMED_OUT is timed_out, DISCONNECTED and SHUTDOWN are not_connected, CONNECT is
 * connection_refused. */
inline const std::error_category &error_category() noexcept {
    static const detail::error_category category;
    return category;
}

/** A failure as an exception. what() is the failure's text and the error's name. */
class error : public std::system_error {
  public:
    explicit error(const failure &reason)
        : std::system_error(reason.number(), error_category(), reason.text()) {}

    /** A GPUPOOL_E_…, as code().value() */
    int number() const noexcept { return code().value(); }
};
#endif

namespace detail {
[[noreturn]] inline void fail(const failure &reason) {
#if defined(__cpp_exceptions)
    throw error(reason);
#else
    static_cast<void>(reason);
    std::abort();
#endif
}
} /* namespace detail */

/** A value, or the failure because of which there is none. */
template <typename T> class [[nodiscard]] result {
    static_assert(std::is_nothrow_move_constructible_v<T>, "so that a result always has one of the two");

  public:
    using value_type = T;

    result(T value) noexcept : content_(std::in_place_index<0>, std::move(value)) {}
    result(failure reason) noexcept : content_(std::in_place_index<1>, std::move(reason)) {}

    bool has_value() const noexcept { return content_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }

    /** The value. There has to be one. */
    T &operator*() &noexcept { return *there(); }
    const T &operator*() const &noexcept { return *there(); }
    T &&operator*() &&noexcept { return std::move(*there()); }
    T *operator->() noexcept { return there(); }
    const T *operator->() const noexcept { return there(); }

    /** The value. Where there is none: throws gpupool::error. */
    T &value() & {
        check();
        return *there();
    }
    const T &value() const & {
        check();
        return *there();
    }
    T value() && {
        check();
        return std::move(*there());
    }

    /** The failure. There has to be one. */
    const failure &error() const noexcept {
        assert(!has_value());
        return *std::get_if<1>(&content_);
    }

  private:
    void check() const {
        if (!has_value())
            detail::fail(error());
    }
    T *there() noexcept {
        assert(has_value());
        return std::get_if<0>(&content_);
    }
    const T *there() const noexcept {
        assert(has_value());
        return std::get_if<0>(&content_);
    }

    std::variant<T, failure> content_;
};

/** Success, or a failure. */
template <> class [[nodiscard]] result<void> {
  public:
    using value_type = void;

    result() noexcept = default;
    result(failure reason) noexcept : failure_(std::move(reason)) {}

    bool has_value() const noexcept { return !failure_.has_value(); }
    explicit operator bool() const noexcept { return has_value(); }

    /** Nothing. After a failure: throws gpupool::error. */
    void value() const {
        if (failure_)
            detail::fail(*failure_);
    }

    /** The failure. There has to be one. */
    const failure &error() const noexcept {
        assert(failure_.has_value());
        return *failure_;
    }

  private:
    std::optional<failure> failure_;
};

namespace detail {
/* From the number that a call of the C interface returned. */
inline result<void> result_of(int returned) {
    return returned < 0 ? result<void>(failure(returned)) : result<void>();
}
} /* namespace detail */

} /* namespace gpupool */
#endif
