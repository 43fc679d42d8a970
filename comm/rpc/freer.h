// Frees what a C library gave, as the deleter of a std::unique_ptr.
//
//   using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
#pragma once

namespace syncline {

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

}  // namespace syncline
