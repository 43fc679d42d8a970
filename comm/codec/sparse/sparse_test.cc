#include "comm/codec/sparse/sparse.h"
#include "gtest/gtest.h"
