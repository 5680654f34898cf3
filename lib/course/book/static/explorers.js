"use strict";
const explorers = {};
